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

struct EmulatedIndex {
    unsigned x = 0, y = 0, z = 0;
};
static EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

static ucontext_t scheduler;
static ucontext_t* fibers = nullptr;
static bool* ended = nullptr;
static void (*body)(void*) = nullptr;
static void* argument = nullptr;

static void run_fiber() {
    body(argument);
    ended[threadIdx.x] = true;
}

/// The threads of a block take turns: each runs until its next barrier.
static void run_block(unsigned threads) {
    constexpr size_t stack = 64 * 1024;
    static char* stacks = static_cast<char*>(malloc(1024 * stack));
    fibers = static_cast<ucontext_t*>(calloc(threads, sizeof(ucontext_t)));
    ended = static_cast<bool*>(calloc(threads, 1));
    for (unsigned i = 0; i < threads; ++i) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = stacks + i * stack;
        fibers[i].uc_stack.ss_size = stack;
        fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], run_fiber, 0);
    }
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < threads; ++i) {
            if (ended[i]) continue;
            threadIdx.x = i;
            swapcontext(&scheduler, &fibers[i]);
            more = more || !ended[i];
        }
    }
    free(fibers);
    free(ended);
}

}  // namespace emulated

static inline void __syncthreads() {
    const unsigned me = threadIdx.x;
    swapcontext(&emulated::fibers[me], &emulated::scheduler);
}

/// Called by the driver: all blocks of a launch.
extern "C" void emulated_launch(void (*body)(void*), void* argument, unsigned blocks, unsigned threads,
                                bool barriers) {
    gridDim.x = blocks;
    blockDim.x = threads;
    emulated::body = body;
    emulated::argument = argument;
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        if (barriers) {
            emulated::run_block(threads);
            continue;
        }
        for (unsigned i = 0; i < threads; ++i) {
            threadIdx.x = i;
            body(argument);
        }
    }
}
