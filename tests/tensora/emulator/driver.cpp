// The CUDA driver on the CPU, as far as accelera.tensora calls it: two devices whose memory the CPU can touch
// only while a kernel or a copy runs. Kernels are compiled by g++ (see compiler.cpp and device.h).
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "error_words.h"
#include "memory.h"

using namespace emulated;
using Lock = std::lock_guard<std::recursive_mutex>;

namespace {

struct Graph {
    int device;
    std::vector<Work> nodes;
};
struct Function {
    int device;
    int (*launch)(void (*)(void*), void*, unsigned, unsigned, bool, bool);
    void (*body)(void*);
    size_t parameter_bytes;
    std::string name;
    bool barriers;
};

std::set<void*> graphs;
int captures = 0;      // that go on
int launches = 0;      // of graphs
unsigned kernels = 0;  // that ran
constexpr size_t most_parameter_bytes = 4096, most_shared_bytes = 48 * 1024;
constexpr unsigned most_threads = 256;  // that every kernel declares

int fails_now();

}  // namespace

extern "C" {

// --- what tests set and read

/// That many captures come to nothing from now on.
int emulated_spoiled_captures = 0;
/// The number of the next allocation to fail, from 1; 0: none. And how many fail in a row.
int emulated_failing_allocation = 0, emulated_failures = 1;
/// What cuDriverGetVersion returns.
int emulated_driver_version = 13000;
/// Modules that do not load from now on.
int emulated_bad_modules = 0;
/// Waits of the host for a stream.
int emulated_waits = 0;
int emulated_graph_launches() { return launches; }
/// Bytes of the host that are pinned.
size_t emulated_pinned_bytes() {
    const Lock lock(mutex);
    size_t sum = 0;
    for (const auto& [memory, nbytes] : pinned) sum += nbytes;
    return sum;
}
/// Release threshold of a device's default pool, which belongs to the whole process.
uint64_t emulated_default_threshold(int device) { return default_pools[device].threshold; }
/// The contexts work again, as in a new process.
void emulated_forget_errors() {
    for (int& failure : lost) failure = success;
}
/// Whether all work of a stream is done.
int emulated_is_done(void* stream) {
    const Lock lock(mutex);
    Stream* const one = stream_of(stream);
    return one && Mark{one, one->end()}.done();
}

// --- what the emulated cuBLAS calls

/// Work of a stream: done later, or when the graph that the stream goes to is launched. Takes it over.
int emulated_enqueue(void* stream, std::function<int()>* pointer) {
    const Lock lock(mutex);
    Work work = std::move(*pointer);
    delete pointer;
    Stream* const one = stream_of(stream);
    if (const int problem = problem_of(one)) return problem;
    return enqueue(*one, std::move(work));
}
// Copies by work that is being done.
int emulated_read(int device, void* to, Address from, size_t n) {
    const Opened opened(device, {from});
    if (!reachable(device, from, n)) return illegal_address;
    return std::memcpy(to, reinterpret_cast<void*>(from), n), success;
}
int emulated_write(int device, Address to, const void* from, size_t n) {
    const Opened opened(device, {to});
    if (!reachable(device, to, n)) return illegal_address;
    return std::memcpy(reinterpret_cast<void*>(to), from, n), success;
}

// --- devices and contexts

int cuInit(unsigned) {
    owner = getpid();
    return success;
}
int cuDriverGetVersion(int* version) { return *version = emulated_driver_version, success; }
int cuDeviceGetCount(int* n) { return owner == getpid() ? (*n = n_devices, success) : not_initialized; }
int cuDeviceGet(int* device, int i) {
    if (owner != getpid()) return not_initialized;
    if (i < 0 || i >= n_devices) return invalid_value;
    return *device = i, success;
}
int cuDeviceGetName(char* name, int n, int device) {
    std::snprintf(name, size_t(n), "Emulated device %d", device);
    return success;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const std::map<int, int> values = {{75, 9}, {76, 0}, {16, 4}, {115, 1}};
    const auto place = values.find(attribute);
    *value = place == values.end() ? 0 : place->second;
    return success;
}
int cuDeviceTotalMem_v2(size_t* n, int) { return *n = device_bytes(), success; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
    if (owner != getpid()) return not_initialized;
    *context = reinterpret_cast<void*>(intptr_t(device + 1));
    return success;
}
int cuCtxSetCurrent(void* context) {
    if (owner != getpid()) return not_initialized;
    return current = int(reinterpret_cast<intptr_t>(context)), success;
}
int cuCtxGetCurrent(void** context) {
    if (owner != getpid()) return not_initialized;
    *context = reinterpret_cast<void*>(intptr_t(current));
    return success;
}
int cuCtxSynchronize() {
    const Lock lock(mutex);
    if (captures) return capture_unsupported;
    if (const int problem = unusable()) return problem;
    ++emulated_waits;
    return finish_all(current - 1);
}

// --- memory

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    const Lock lock(mutex);
    if (const int problem = unusable()) return problem;
    *total = device_bytes();
    *free = *total - std::min(*total, reserved_bytes(current - 1));
    return success;
}
int cuDeviceGetDefaultMemPool(void** pool, int device) { return *pool = &default_pools[device], success; }
/// The properties begin with two numbers, and the place: its kind, and the device.
int cuMemPoolCreate(void** pool, const int* properties) {
    const Lock lock(mutex);
    if (properties[0] != 1 || properties[2] != 1 || properties[3] >= n_devices) return invalid_value;
    pools.push_back(new Pool{properties[3]});
    return *pool = pools.back(), success;
}
int cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    if (attribute == 4) std::memcpy(&static_cast<Pool*>(pool)->threshold, value, 8);
    return success;
}
int cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
    const Lock lock(mutex);
    const auto& one = *static_cast<Pool*>(pool);
    const uint64_t n = attribute == 5 ? one.reserved : attribute == 7 ? one.used : one.threshold;
    std::memcpy(value, &n, 8);
    return success;
}
int cuMemPoolTrimTo(void* pool, size_t keep) {
    const Lock lock(mutex);
    if (captures) return capture_unsupported;
    auto& one = *static_cast<Pool*>(pool);
    one.reserved = std::min(one.reserved, std::max(one.used, keep));
    return success;
}
/// Blocks that the stream itself freed before are there again without a wait.
int cuMemAllocFromPoolAsync(Address* address, size_t n, void* pool_handle, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    auto& pool = *static_cast<Pool*>(pool_handle);
    if (n == 0 || pool.device != stream->device) return invalid_value;
    if (fails_now()) return out_of_memory;
    if (!fits(pool, n)) finish(*stream);
    return fits(pool, n) ? make_block(address, n, pool) : out_of_memory;
}
int cuMemAllocAsync(Address* address, size_t n, void* stream) {
    if (const int problem = unusable()) return problem;
    return cuMemAllocFromPoolAsync(address, n, &default_pools[current - 1], stream);
}
int cuMemFreeAsync(Address address, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    const auto place = blocks.find(address);
    if (place == blocks.end() || place->second.freed) return invalid_value;
    place->second.freed = true;
    return enqueue(*stream, [address] { return drop_block(address), success; });
}
int cuMemAllocHost_v2(void** memory, size_t n) {
    const Lock lock(mutex);
    if (const int problem = unusable()) return problem;
    if (std::getenv("EMULATED_CUDA_NO_HOST_MEMORY")) return out_of_memory;
    *memory = std::malloc(n);
    pinned[static_cast<char*>(*memory)] = n;
    return *memory ? success : out_of_memory;
}
/// What copies still reach is filled with other bytes before.
int cuMemFreeHost(void* memory) {
    const Lock lock(mutex);
    const auto place = pinned.find(static_cast<char*>(memory));
    if (place == pinned.end()) return invalid_value;
    std::memset(memory, 0x5a, place->second);
    pinned.erase(place);
    return std::free(memory), success;
}

}  // extern "C"

namespace {

bool is_pinned(const void* memory) {
    auto place = pinned.upper_bound(static_cast<const char*>(memory));
    return place != pinned.begin() && static_cast<const char*>(memory) < (--place)->first + place->second;
}

int fails_now() {
    if (!emulated_failing_allocation) return 0;
    if (emulated_failing_allocation > 1) return --emulated_failing_allocation, 0;
    if (--emulated_failures > 0) return 1;
    emulated_failures = 1;
    emulated_failing_allocation = 0;
    return 1;
}

}  // namespace

extern "C" {

// --- copies: memory of the host that is not pinned is read before they return, or written

int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    if (!inside(to, n)) return invalid_value;
    const int device = stream->device;
    if (is_pinned(from)) return enqueue(*stream, [=] { return emulated_write(device, to, from, n); });
    std::string bytes(static_cast<const char*>(from), n);
    return enqueue(*stream,
                   [=, bytes = std::move(bytes)] { return emulated_write(device, to, bytes.data(), n); });
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t n, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    if (!inside(from, n)) return invalid_value;
    const int device = stream->device;
    const int result = enqueue(*stream, [=] { return emulated_read(device, to, from, n); });
    return is_pinned(to) ? result : finish(*stream);
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream)) return problem;
    const bool apart = to + n <= from || from + n <= to;
    if (!inside(to, n) || !inside(from, n) || !apart) return invalid_value;
    const int device = stream->device;
    return enqueue(*stream, [=] {
        const Opened opened(device, {to, from});
        if (!reachable(device, to, n) || !reachable(device, from, n)) return illegal_address;
        return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n), success;
    });
}
int cuMemsetD8Async(Address to, unsigned char value, size_t n, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream)) return problem;
    if (!inside(to, n)) return invalid_value;
    const int device = stream->device;
    return enqueue(*stream, [=] {
        const Opened opened(device, {to});
        if (!reachable(device, to, n)) return illegal_address;
        return std::memset(reinterpret_cast<void*>(to), value, n), success;
    });
}

// --- streams and events

int cuStreamCreate(void** handle, unsigned flags) {
    const Lock lock(mutex);
    if (const int problem = unusable()) return problem;
    auto* const stream = new Stream{current - 1, !(flags & 1)};
    streams.insert(stream);
    return *handle = stream, success;
}
int cuStreamSynchronize(void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    ++emulated_waits;
    return finish(*stream);
}
int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    auto* const event = static_cast<Event*>(event_handle);
    if (!events.count(event)) return invalid_handle;
    const Mark mark = event->mark;
    return enqueue(*stream, [mark] { return run_until(mark), success; });
}
int cuEventCreate(void** event, unsigned) {
    const Lock lock(mutex);
    if (const int problem = unusable()) return problem;
    auto* const made = new Event{current - 1, {}};
    events.insert(made);
    return *event = made, success;
}
int cuEventRecord(void* event_handle, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    auto* const event = static_cast<Event*>(event_handle);
    if (!events.count(event) || event->device != stream->device) return invalid_handle;
    const int result = enqueue(*stream, [] { return success; });
    event->mark = {stream, stream->end()};
    return result;
}
int cuEventQuery(void* event_handle) {
    const Lock lock(mutex);
    auto* const event = static_cast<Event*>(event_handle);
    if (!events.count(event)) return invalid_handle;
    return event->mark.done() ? success : not_ready;
}
int cuEventDestroy_v2(void* event_handle) {
    const Lock lock(mutex);
    auto* const event = static_cast<Event*>(event_handle);
    if (!events.erase(event)) return invalid_handle;
    return delete event, success;
}

// --- kernels

/// A "cubin" is whether its kernel has barriers, the kernel's name, a colon, and the path of a library.
int cuModuleLoadData(void** module, const void* image) {
    const Lock lock(mutex);
    if (const int problem = unusable()) return problem;
    if (captures) return capture_unsupported;
    if (emulated_bad_modules && emulated_bad_modules--) return invalid_image;
    const std::string text(static_cast<const char*>(image));
    const size_t colon = text.find(':');
    if (colon == std::string::npos || (text[0] != 'b' && text[0] != '-')) return invalid_image;
    void* const library = dlopen(text.c_str() + colon + 1, RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), invalid_image;
    auto* const function =
        new Function{current - 1, nullptr, nullptr, 0, text.substr(1, colon - 1), text[0] == 'b'};
    function->launch = reinterpret_cast<decltype(function->launch)>(dlsym(library, "emulated_launch"));
    function->body = reinterpret_cast<decltype(function->body)>(dlsym(library, "emulated_kernel"));
    function->parameter_bytes = *static_cast<size_t*>(dlsym(library, "emulated_parameter_bytes"));
    const auto shared = reinterpret_cast<size_t (*)()>(dlsym(library, "emulated_shared_bytes"));
    if (shared() > most_shared_bytes || function->parameter_bytes > most_parameter_bytes)
        return too_many_resources;
    return *module = function, success;
}
int cuModuleUnload(void* module) { return delete static_cast<Function*>(module), success; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = module;
    return static_cast<Function*>(module)->name == name ? success : not_found;
}
/// Each second kernel runs its blocks and threads backwards.
int cuLaunchKernel(void* function_handle, unsigned blocks_x, unsigned y, unsigned z, unsigned threads,
                   unsigned threads_y, unsigned threads_z, unsigned, void* handle, void** parameters,
                   void**) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream)) return problem;
    const auto& function = *static_cast<Function*>(function_handle);
    if (function.device != stream->device) return invalid_handle;
    if (!blocks_x || y != 1 || z != 1 || !threads || threads_y != 1 || threads_z != 1) return invalid_value;
    if (threads > most_threads) return too_many_resources;
    const char* const first = static_cast<const char*>(parameters[0]);
    // As the driver does: the arguments are copied now, the kernel runs later.
    std::vector<Address> argument(function.parameter_bytes / sizeof(Address) + 1);
    std::memcpy(argument.data(), first, function.parameter_bytes);
    return enqueue(*stream, [=, device = stream->device]() mutable {
        const Opened opened(device, std::span<const Address>(argument));
        const bool backwards = kernels++ % 2;
        return run_guarded([&] {
            return function.launch(function.body, argument.data(), blocks_x, threads, function.barriers,
                                   backwards);
        });
    });
}

// --- graphs

int cuStreamBeginCapture_v2(void* handle, int) {
    const Lock lock(mutex);
    if (const int problem = unusable()) return problem;
    auto* const stream = static_cast<Stream*>(handle);
    if (!streams.count(stream) || stream->capturing) return capture_unsupported;
    stream->capturing = stream->valid = true;
    ++captures;
    return success;
}
int cuStreamEndCapture(void* handle, void** graph) {
    const Lock lock(mutex);
    *graph = nullptr;
    auto* const stream = static_cast<Stream*>(handle);
    if (!streams.count(stream) || !stream->capturing) return invalid_value;
    stream->capturing = false;
    --captures;
    std::vector<Work> nodes = std::exchange(stream->captured, {});
    if (!stream->valid || (emulated_spoiled_captures && emulated_spoiled_captures--))
        return capture_invalidated;
    graphs.insert(*graph = new Graph{stream->device, std::move(nodes)});
    return success;
}
#ifndef WITHOUT_GRAPHS
int cuGraphInstantiateWithFlags(void** ready, void* graph, unsigned long long) {
    const Lock lock(mutex);
    if (!graphs.count(graph)) return invalid_handle;
    graphs.insert(*ready = new Graph(*static_cast<Graph*>(graph)));
    return success;
}
int cuGraphLaunch(void* ready, void* handle) {
    const Lock lock(mutex);
    Stream* const stream = stream_of(handle);
    if (const int problem = problem_of(stream, false)) return problem;
    if (!graphs.count(ready) || static_cast<Graph*>(ready)->device != stream->device) return invalid_handle;
    ++launches;
    for (const Work& work : static_cast<Graph*>(ready)->nodes)
        if (const int result = enqueue(*stream, work)) return result;
    return success;
}
#endif
int cuGraphDestroy(void* graph) {
    const Lock lock(mutex);
    if (!graphs.erase(graph)) return invalid_handle;
    delete static_cast<Graph*>(graph);
    return success;
}
int cuGraphExecDestroy(void* ready) { return cuGraphDestroy(ready); }

// --- errors

int cuGetErrorName(int result, const char** name) { return *name = words_of(result).name, success; }
int cuGetErrorString(int result, const char** words) { return *words = words_of(result).words, success; }

}  // extern "C"
