#include "tensora/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "tensora/core/base.h"
#include "tensora/core/threads.h"
#include "tensora/cuda/graph.h"

namespace accelera::tensora::cuda {

namespace {

using Result = int;
using Device = int;
using Context = void*;
using Event = void*;
using Pool = void*;
using Module = void*;
using Address = unsigned long long;
constexpr Result out_of_memory = 2, deinitialized = 4;
constexpr int attribute_major = 75, attribute_minor = 76, attribute_processors = 16;
constexpr int pool_threshold = 4, pool_reserved = 5, pool_used = 7;

/// Functions of the driver, by their names there.
struct Driver {
    void* library = nullptr;
    std::string absence;
    int devices = 0;

    Result (*cuInit)(unsigned);
    Result (*cuDeviceGetCount)(int*);
    Result (*cuDeviceGet)(Device*, int);
    Result (*cuDeviceGetName)(char*, int, Device);
    Result (*cuDeviceGetAttribute)(int*, int, Device);
    Result (*cuDeviceTotalMem_v2)(size_t*, Device);
    Result (*cuDevicePrimaryCtxRetain)(Context*, Device);
    Result (*cuCtxGetCurrent)(Context*);
    Result (*cuCtxSetCurrent)(Context);
    Result (*cuCtxSynchronize)();
    Result (*cuMemGetInfo_v2)(size_t*, size_t*);
    Result (*cuDeviceGetDefaultMemPool)(Pool*, Device);
    Result (*cuMemPoolSetAttribute)(Pool, int, void*);
    Result (*cuMemPoolGetAttribute)(Pool, int, void*);
    Result (*cuMemPoolTrimTo)(Pool, size_t);
    Result (*cuMemAllocAsync)(Address*, size_t, Stream);
    Result (*cuMemFreeAsync)(Address, Stream);
    Result (*cuMemAllocHost_v2)(void**, size_t);
    Result (*cuMemFreeHost)(void*);
    Result (*cuMemcpyHtoDAsync_v2)(Address, const void*, size_t, Stream);
    Result (*cuMemcpyDtoHAsync_v2)(void*, Address, size_t, Stream);
    Result (*cuMemcpyDtoDAsync_v2)(Address, Address, size_t, Stream);
    Result (*cuMemsetD8Async)(Address, unsigned char, size_t, Stream);
    Result (*cuStreamCreate)(Stream*, unsigned);
    Result (*cuStreamSynchronize)(Stream);
    Result (*cuStreamWaitEvent)(Stream, Event, unsigned);
    Result (*cuEventCreate)(Event*, unsigned);
    Result (*cuEventRecord)(Event, Stream);
    Result (*cuEventDestroy_v2)(Event);
    Result (*cuModuleLoadData)(Module*, const void*);
    Result (*cuModuleGetFunction)(Function*, Module, const char*);
    Result (*cuLaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             Stream, void**, void**);
    // Drivers before 11.4 do not have them.
    Result (*cuStreamBeginCapture_v2)(Stream, int);
    Result (*cuStreamEndCapture)(Stream, void**);
    Result (*cuGraphInstantiateWithFlags)(void**, void*, unsigned long long);
    Result (*cuGraphLaunch)(void*, Stream);
    Result (*cuGraphExecDestroy)(void*);
    Result (*cuGraphDestroy)(void*);
    bool graphs = false;
    Result (*cuGetErrorName)(Result, const char**);
    Result (*cuGetErrorString)(Result, const char**);

    Driver() { load(); }

  private:
    template <typename Pointer>
    void find(Pointer& pointer, const char* name) {
        pointer = reinterpret_cast<Pointer>(symbol(library, name));
        if (!pointer && absence.empty()) absence = text("the CUDA driver that is installed has no ", name);
    }

    void find_all() {
#define FIND(name) find(name, #name)
        FIND(cuInit), FIND(cuDeviceGetCount), FIND(cuDeviceGet), FIND(cuDeviceGetName);
        FIND(cuDeviceGetAttribute), FIND(cuDeviceTotalMem_v2), FIND(cuDevicePrimaryCtxRetain);
        FIND(cuCtxGetCurrent), FIND(cuCtxSetCurrent), FIND(cuCtxSynchronize), FIND(cuMemGetInfo_v2);
        FIND(cuDeviceGetDefaultMemPool), FIND(cuMemPoolSetAttribute), FIND(cuMemPoolGetAttribute);
        FIND(cuMemPoolTrimTo), FIND(cuMemAllocAsync), FIND(cuMemFreeAsync), FIND(cuMemAllocHost_v2);
        FIND(cuMemFreeHost), FIND(cuMemcpyHtoDAsync_v2);
        FIND(cuMemcpyDtoHAsync_v2), FIND(cuMemcpyDtoDAsync_v2), FIND(cuMemsetD8Async);
        FIND(cuStreamCreate), FIND(cuStreamSynchronize), FIND(cuStreamWaitEvent);
        FIND(cuEventCreate), FIND(cuEventRecord), FIND(cuEventDestroy_v2), FIND(cuModuleLoadData);
        FIND(cuModuleGetFunction), FIND(cuLaunchKernel), FIND(cuGetErrorName), FIND(cuGetErrorString);
        if (!absence.empty()) return;
        FIND(cuStreamBeginCapture_v2), FIND(cuStreamEndCapture), FIND(cuGraphInstantiateWithFlags);
        FIND(cuGraphLaunch), FIND(cuGraphExecDestroy), FIND(cuGraphDestroy);
#undef FIND
        graphs = absence.empty();
        absence.clear();
    }

    void load() {
        library = open_library({"libcuda.so.1"});
        if (!library) {
            absence = "no CUDA driver (libcuda.so.1) is installed";
            return;
        }
        find_all();
        if (!absence.empty()) return;
        const Result result = cuInit(0);
        const char* words = nullptr;
        if (result == 0)
            cuDeviceGetCount(&devices);
        else if (cuGetErrorString(result, &words) == 0)
            absence = text("the CUDA driver does not start: ", words);
        if (devices == 0 && absence.empty()) absence = "the CUDA driver shows no device";
    }
};

/// Leaked: tensors of Python's globals die after static objects do. One that was not found is looked for
/// again.
Driver& driver() {
    static std::atomic<Driver*> one{nullptr};
    static std::mutex mutex;
    Driver* found = one.load(std::memory_order_acquire);
    if (found && found->library) [[likely]]
        return *found;
    const std::lock_guard lock(mutex);
    found = one.load();
    if (!found || !found->library) one.store(found = new Driver);
    return *found;
}

[[noreturn]] void raise(Result result, const char* what) {
    const char *name = nullptr, *words = nullptr;
    driver().cuGetErrorName(result, &name);
    driver().cuGetErrorString(result, &words);
    fail(result == out_of_memory ? Kind::device_memory : Kind::device, "[CUDA] ", what,
         " failed: ", name ? name : "unknown error", " (", words ? words : "no description", ")");
}

void check(Result result, const char* what) {
    if (result != 0) [[unlikely]]
        raise(result, what);
}

/// A device in use: its primary context, which other libraries of the process share.
struct State {
    Device device = 0;
    Context context = nullptr;
    Pool pool = nullptr;
    Stream stream = nullptr;
    Stream capture_stream = nullptr;  ///< that graphs are captured on
    Properties properties;

    explicit State(int index) {
        Driver& d = driver();
        check(d.cuDeviceGet(&device, index), "to find the device");
        read_properties();
        check(d.cuDevicePrimaryCtxRetain(&context, device), "to make a context");
        check(d.cuCtxSetCurrent(context), "to use a context");
        check(d.cuDeviceGetDefaultMemPool(&pool, device), "to find the memory pool");
        uint64_t keep_all = UINT64_MAX;
        check(d.cuMemPoolSetAttribute(pool, pool_threshold, &keep_all), "to set up the memory pool");
        check(d.cuStreamCreate(&stream, 1), "to make a stream");
    }

  private:
    void read_properties() {
        Driver& d = driver();
        char name[256] = "";
        size_t total = 0;
        check(d.cuDeviceGetName(name, sizeof(name), device), "to read the device's name");
        check(d.cuDeviceTotalMem_v2(&total, device), "to read the device's memory");
        properties.name = name;
        properties.memory_bytes = int64_t(total);
        check(d.cuDeviceGetAttribute(&properties.major, attribute_major, device), "to read an attribute");
        check(d.cuDeviceGetAttribute(&properties.minor, attribute_minor, device), "to read an attribute");
        check(d.cuDeviceGetAttribute(&properties.processors, attribute_processors, device),
              "to read an attribute");
    }
};

constexpr int most_devices = 64;
// Made when a stream is chosen: thread-local memory of a library is scarce (see core/memory.cpp).
thread_local std::unique_ptr<std::array<Stream, most_devices>> chosen_streams;

Stream& chosen_stream(int device) {
    if (!chosen_streams) chosen_streams = std::make_unique<std::array<Stream, most_devices>>();
    return (*chosen_streams)[size_t(device)];
}

thread_local Stream stream_before_capture = nullptr;

State& state(int device) {
    static std::array<std::atomic<State*>, most_devices> all{};
    static std::mutex mutex;
    if (State* const known = all[size_t(device)].load(std::memory_order_acquire)) return *known;
    check_device(device);
    const std::lock_guard lock(mutex);
    if (!all[size_t(device)]) all[size_t(device)] = new State(device);
    return *all[size_t(device)];
}

/// The device with its context current in this thread.
State& used(int device) {
    State& one = state(device);
    Context current = nullptr;
    driver().cuCtxGetCurrent(&current);
    if (current != one.context) check(driver().cuCtxSetCurrent(one.context), "to use a context");
    return one;
}

Address address(const void* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

void* symbol(void* library, const char* name) { return dlsym(library, name); }

namespace {
std::vector<std::string>& packaged_libraries() {
    static auto* const paths = new std::vector<std::string>;
    return *paths;
}
}  // namespace

void set_packaged_libraries(const std::vector<std::string>& paths) { packaged_libraries() = paths; }

void* open_library(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    for (const std::string name : names)
        for (const std::string& path : packaged_libraries())
            if (path.size() > name.size() && path.compare(path.size() - name.size(), name.size(), name) == 0)
                if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    return nullptr;
}

int device_count() { return std::min(driver().devices, most_devices); }
std::string absence() { return driver().absence; }

void check_device(int device) {
    require(device_count() > 0, "[tensora] no CUDA device: ", absence(),
            "; use the device 'cpu', or ask cuda.is_available() before");
    require(device >= 0 && device < device_count(), "[tensora] no device 'cuda:", device, "'; there are ",
            device_count(), ", counted from 0");
}

const Properties& properties(int device) { return state(device).properties; }

FreeBytes free_bytes(int device) {
    State& one = used(device);
    size_t free = 0, total = 0;
    uint64_t reserved = 0, in_use = 0;
    check(driver().cuMemGetInfo_v2(&free, &total), "to read the free memory");
    check(driver().cuMemPoolGetAttribute(one.pool, pool_reserved, &reserved), "to read the memory pool");
    check(driver().cuMemPoolGetAttribute(one.pool, pool_used, &in_use), "to read the memory pool");
    return {int64_t(free), int64_t(reserved - in_use)};
}

char* take_memory(int device, int64_t nbytes) {
    Watch* const watch = Watch::here();
    return watch && watch->memory().device() == device ? watch->take(nbytes) : take_from_pool(device, nbytes);
}

void give_memory(int device, char* memory, Stream stream) {
    Watch* const watch = Watch::here();
    if (watch && watch->memory().give(memory)) return;
    give_to_pool(device, memory, Watch::is_capturing() ? stream_before_capture : stream);
}

char* take_from_pool(int device, int64_t nbytes) {
    State& one = used(device);
    const auto take = [&](Address& found) {
        return driver().cuMemAllocAsync(&found, size_t(std::max<int64_t>(nbytes, 1)), current_stream(device));
    };
    Address found = 0;
    Result result = take(found);
    if (result == out_of_memory) {
        check(driver().cuStreamSynchronize(current_stream(device)), "to wait for memory");
        driver().cuMemPoolTrimTo(one.pool, 0);
        result = take(found);
    }
    if (result == out_of_memory) return nullptr;
    check(result, "to allocate memory");
    return reinterpret_cast<char*>(found);
}

void give_to_pool(int device, char* memory, Stream stream) {
    State& one = state(device);
    Driver& d = driver();
    Context current = nullptr;
    // The end of the process may have come: then nothing is left to give back to.
    if (d.cuCtxGetCurrent(&current) == deinitialized) return;
    if (current != one.context) d.cuCtxSetCurrent(one.context);
    d.cuMemFreeAsync(address(memory), stream ? stream : one.stream);
}

void trim_pool(int device) {
    State& one = used(device);
    synchronize(device);
    check(driver().cuMemPoolTrimTo(one.pool, 0), "to empty the memory pool");
}

Stream current_stream(int device) {
    const Stream chosen = chosen_streams ? chosen_stream(device) : nullptr;
    return chosen ? chosen : state(device).stream;
}
void set_stream(int device, Stream stream) {
    check_device(device);
    chosen_stream(device) = stream;
}

Stream make_stream(int device) {
    static std::array<std::array<std::atomic<Stream>, 32>, most_devices> all{};
    static std::atomic<unsigned> next{0};
    used(device);
    std::atomic<Stream>& place = all[size_t(device)][next++ % 32];
    if (Stream known = place) return known;
    Stream made = nullptr, none = nullptr;
    check(driver().cuStreamCreate(&made, 1), "to make a stream");
    place.compare_exchange_strong(none, made);
    return place;
}

void order_streams(int device, Stream earlier, Stream later) {
    // What goes to a graph is launched on a stream that waited already.
    if (earlier == later || Watch::is_capturing()) return;
    used(device);
    Event event = nullptr;
    check(driver().cuEventCreate(&event, 2), "to make an event");
    const Result recorded = driver().cuEventRecord(event, earlier);
    const Result waits = recorded ? recorded : driver().cuStreamWaitEvent(later, event, 0);
    driver().cuEventDestroy_v2(event);
    check(waits, "to order two streams");
}

void wait_for(int device, Stream stream) {
    Watch::note("waiting for a stream");
    used(device);
    const InterpreterReleased released;
    check(driver().cuStreamSynchronize(stream), "the work of a stream");
}

void finish(int device, Stream stream) noexcept {
    Context current = nullptr;
    if (driver().cuCtxGetCurrent(&current) == deinitialized) return;
    if (current != state(device).context) driver().cuCtxSetCurrent(state(device).context);
    driver().cuStreamSynchronize(stream);
}

void synchronize(int device) {
    Watch::note("waiting for the device");
    used(device);
    const InterpreterReleased released;
    check(driver().cuCtxSynchronize(), "the work of the device");
}

char* take_host_memory(int device, int64_t nbytes) {
    used(device);
    void* found = nullptr;
    return driver().cuMemAllocHost_v2(&found, size_t(nbytes)) == 0 ? static_cast<char*>(found) : nullptr;
}

void give_host_memory(int device, char* memory) noexcept {
    Context current = nullptr;
    if (driver().cuCtxGetCurrent(&current) == deinitialized) return;
    if (current != state(device).context) driver().cuCtxSetCurrent(state(device).context);
    driver().cuMemFreeHost(memory);
}

void begin_copy_to_device(int device, char* to, const void* from, int64_t nbytes, Stream stream) {
    Watch::note("a copy to the device");
    used(device);
    check(driver().cuMemcpyHtoDAsync_v2(address(to), from, size_t(nbytes), stream), "a copy to the device");
}

void begin_copy_to_host(int device, void* to, const char* from, int64_t nbytes, Stream stream) {
    Watch::note("a copy from the device");
    used(device);
    check(driver().cuMemcpyDtoHAsync_v2(to, address(from), size_t(nbytes), stream), "a copy from the device");
}

void copy_to_device(int device, char* to, const void* from, int64_t nbytes) {
    if (nbytes == 0) return;
    const Stream stream = current_stream(device);
    begin_copy_to_device(device, to, from, nbytes, stream);
    wait_for(device, stream);  // the caller may write to `from` now
}

void copy_to_host(int device, void* to, const char* from, int64_t nbytes) {
    if (nbytes == 0) return;
    const Stream stream = current_stream(device);
    begin_copy_to_host(device, to, from, nbytes, stream);
    wait_for(device, stream);
}

void copy_within(int device, char* to, const char* from, int64_t nbytes) {
    if (nbytes == 0) return;
    used(device);
    check(driver().cuMemcpyDtoDAsync_v2(address(to), address(from), size_t(nbytes), current_stream(device)),
          "a copy on the device");
}

void fill_bytes(int device, char* to, int value, int64_t nbytes) {
    if (nbytes == 0) return;
    used(device);
    check(driver().cuMemsetD8Async(address(to), static_cast<unsigned char>(value), size_t(nbytes),
                                   current_stream(device)),
          "to fill memory");
}

Function load_function(int device, const std::string& code, const char* name) {
    if (Watch::is_capturing())
        fail(Kind::device, "[CUDA] ", name, " is not loaded before it goes to a graph");
    used(device);
    Module module = nullptr;
    Function function = nullptr;
    check(driver().cuModuleLoadData(&module, code.data()), name);
    check(driver().cuModuleGetFunction(&function, module, name), name);
    return function;
}

void launch(int device, Function function, const char* name, const Launch& launch, void* arguments) {
    if (launch.blocks <= 0) return;
    State& one = used(device);
    const int64_t most = int64_t(one.properties.processors) * 32;
    void* parameters[] = {arguments};
    check(driver().cuLaunchKernel(function, unsigned(std::min(launch.blocks, most)), 1, 1,
                                  unsigned(launch.threads), 1, 1, 0, current_stream(device), parameters,
                                  nullptr),
          name);
}

// --- graphs

bool has_graphs() { return driver().graphs; }

void begin_graph(int device) {
    State& one = used(device);
    if (!one.capture_stream) check(driver().cuStreamCreate(&one.capture_stream, 1), "to make a stream");
    constexpr int this_thread = 1;  // other threads may do what they like
    check(driver().cuStreamBeginCapture_v2(one.capture_stream, this_thread), "to begin a graph");
    stream_before_capture = std::exchange(chosen_stream(device), one.capture_stream);
}

void* end_graph(int device, bool used) {
    chosen_stream(device) = std::exchange(stream_before_capture, nullptr);
    void *graph = nullptr, *ready = nullptr;
    Result result = driver().cuStreamEndCapture(state(device).capture_stream, &graph);
    if (used && result == 0) result = driver().cuGraphInstantiateWithFlags(&ready, graph, 0);
    if (graph) driver().cuGraphDestroy(graph);
    if (used) check(result, "to make a graph");
    return ready;
}

void launch_graph(int device, void* graph) {
    used(device);
    check(driver().cuGraphLaunch(graph, current_stream(device)), "to launch a graph");
}

void drop_graph(void* graph) noexcept {
    Context current = nullptr;
    if (graph && driver().cuCtxGetCurrent(&current) != deinitialized) driver().cuGraphExecDestroy(graph);
}

}  // namespace accelera::tensora::cuda
