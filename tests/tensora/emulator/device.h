// CUDA C++ on the CPU: what kernels use of the language, and the threads of a block, one after the other.
// Where a kernel has barriers, each thread is a fiber.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
#define __CUDACC_RTC__
// All that is zero in the library is a kernel's shared memory: the emulator's own variables are elsewhere.
#define EMULATED_STATE static __attribute__((section(".data")))

struct EmulatedIndex {
    unsigned x, y, z;
};
EMULATED_STATE EmulatedIndex threadIdx = {}, blockIdx = {}, blockDim = {}, gridDim = {};

extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

namespace emulated {

EMULATED_STATE ucontext_t scheduler = {};
EMULATED_STATE ucontext_t* fibers = nullptr;
EMULATED_STATE void** stops = nullptr;  ///< barrier that a thread waits at
EMULATED_STATE void (*body)(void*) = nullptr;
EMULATED_STATE void* argument = nullptr;
EMULATED_STATE char* stacks = nullptr;
constexpr size_t stack_bytes = 64 * 1024;
constexpr int launch_failed = 719;

static void run_fiber() {
    body(argument);
    stops[threadIdx.x] = nullptr;
}

static void make_fibers(unsigned threads) {
    if (!stacks) stacks = static_cast<char*>(malloc(1024 * stack_bytes));
    fibers = static_cast<ucontext_t*>(calloc(threads, sizeof(ucontext_t)));
    stops = static_cast<void**>(calloc(threads, sizeof(void*)));
    for (unsigned i = 0; i < threads; ++i) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = stacks + i * stack_bytes;
        fibers[i].uc_stack.ss_size = stack_bytes;
        fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], run_fiber, 0);
    }
}

/// Run all threads up to their next barrier. Whether it is the same one for all, or the end for all.
static bool run_to_barrier(unsigned threads, bool backwards) {
    for (unsigned i = 0; i < threads; ++i) {
        threadIdx.x = backwards ? threads - 1 - i : i;
        swapcontext(&scheduler, &fibers[threadIdx.x]);
    }
    for (unsigned i = 1; i < threads; ++i)
        if (stops[i] != stops[0]) return false;
    return true;
}

/// The threads of a block take turns: each runs until its next barrier.
static int run_block(unsigned threads, bool backwards) {
    memset(__bss_start, 0xa5, size_t(_end - __bss_start));  // shared memory is anything
    make_fibers(threads);
    bool together = true;
    do together = run_to_barrier(threads, backwards);
    while (together && stops[0]);
    if (!together) fprintf(stderr, "the threads of a block stop at different barriers\n");
    free(fibers);
    free(stops);
    return together ? 0 : launch_failed;
}

static int run_without_barriers(unsigned threads, bool backwards) {
    for (unsigned i = 0; i < threads; ++i) {
        threadIdx.x = backwards ? threads - 1 - i : i;
        body(argument);
    }
    return 0;
}

}  // namespace emulated

__attribute__((noinline)) static void __syncthreads() {
    const unsigned me = threadIdx.x;
    emulated::stops[me] = __builtin_return_address(0);
    swapcontext(&emulated::fibers[me], &emulated::scheduler);
}

/// Called by the driver: bytes of shared memory of the kernel.
extern "C" size_t emulated_shared_bytes() { return size_t(_end - __bss_start); }

/// Called by the driver: all blocks of a launch.
extern "C" int emulated_launch(void (*body)(void*), void* argument, unsigned blocks, unsigned threads,
                               bool barriers, bool backwards) {
    gridDim.x = blocks;
    blockDim.x = threads;
    emulated::body = body;
    emulated::argument = argument;
    const auto run = barriers ? emulated::run_block : emulated::run_without_barriers;
    for (unsigned i = 0; i < blocks; ++i) {
        blockIdx.x = backwards ? blocks - 1 - i : i;
        if (const int result = run(threads, backwards)) return result;
    }
    return 0;
}
