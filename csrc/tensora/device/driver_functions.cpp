#include "tensora/device/driver_functions.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "tensora/base/base.h"

namespace accelera::tensora::cuda {

namespace {

constexpr Result out_of_memory = 2, deinitialized = 4;
// Errors of memory and of kernels, after which a context does nothing more.
constexpr std::array<Result, 10> fatal = {214, 700, 702, 710, 714, 715, 716, 717, 718, 719};
constexpr int oldest_major = 12;  // of NVRTC with C++20

// Set in a child process: what the driver made before a fork is of no use there.
std::atomic<bool> forked{false};

std::vector<std::string>& packaged_libraries() {
    static auto* const paths = new std::vector<std::string>;
    return *paths;
}

}  // namespace

// --- libraries

void* symbol(void* library, const char* name) { return dlsym(library, name); }

void set_packaged_libraries(const std::vector<std::string>& paths) { packaged_libraries() = paths; }

void* open_library(const std::vector<std::string>& names) {
    for (const std::string& name : names)
        if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    for (const std::string& name : names)
        for (const std::string& path : packaged_libraries())
            if (path.size() > name.size() && path.compare(path.size() - name.size(), name.size(), name) == 0)
                if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    return nullptr;
}

int newest_major() { return driver().version ? driver().version / 1000 : 13; }

std::vector<std::string> versions_of(const std::string& library) {
    std::vector<std::string> names;
    for (int major = newest_major(); major >= oldest_major; --major)
        names.push_back(text(library, '.', major));
    names.push_back(library);
    return names;
}

// --- the driver

template <typename Pointer>
void Driver::find(Pointer& pointer, const char* name) {
    pointer = reinterpret_cast<Pointer>(symbol(library, name));
    if (!pointer && absence.empty()) absence = text("the CUDA driver that is installed has no ", name);
}

void Driver::find_all() {
#define FIND(name) find(name, #name)
    FIND(cuInit), FIND(cuDriverGetVersion), FIND(cuDeviceGetCount), FIND(cuDeviceGet), FIND(cuDeviceGetName);
    FIND(cuDeviceGetAttribute), FIND(cuDeviceTotalMem_v2), FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxGetCurrent), FIND(cuCtxSetCurrent), FIND(cuCtxSynchronize), FIND(cuMemGetInfo_v2);
    FIND(cuMemPoolCreate), FIND(cuMemPoolSetAttribute), FIND(cuMemPoolGetAttribute), FIND(cuMemPoolTrimTo);
    FIND(cuMemAllocFromPoolAsync), FIND(cuMemFreeAsync), FIND(cuMemAllocHost_v2), FIND(cuMemFreeHost);
    FIND(cuMemcpyHtoDAsync_v2), FIND(cuMemcpyDtoHAsync_v2), FIND(cuMemcpyDtoDAsync_v2);
    FIND(cuMemsetD8Async), FIND(cuStreamCreate), FIND(cuStreamSynchronize), FIND(cuStreamWaitEvent);
    FIND(cuEventCreate), FIND(cuEventRecord), FIND(cuEventQuery), FIND(cuEventDestroy_v2);
    FIND(cuModuleLoadData), FIND(cuModuleGetFunction), FIND(cuLaunchKernel);
    FIND(cuGetErrorName), FIND(cuGetErrorString);
    if (!absence.empty()) return;
    FIND(cuStreamBeginCapture_v2), FIND(cuStreamEndCapture), FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphLaunch), FIND(cuGraphExecDestroy), FIND(cuGraphDestroy);
#undef FIND
    graphs = absence.empty();
    absence.clear();
}

void Driver::load() {
    library = open_library({"libcuda.so.1"});
    if (!library) {
        absence = "no CUDA driver (libcuda.so.1) is installed";
        return;
    }
    find_all();
    if (absence.empty()) start();
}

void Driver::start() {
    const Result result = cuInit(0);
    const char* words = nullptr;
    if (result == 0) {
        pthread_atfork(nullptr, nullptr, [] { forked = true; });
        cuDriverGetVersion(&version);
        cuDeviceGetCount(&devices);
    } else if (cuGetErrorString(result, &words) == 0) {
        absence = text("the CUDA driver does not start: ", words);
    }
    if (devices == 0 && absence.empty()) absence = "the CUDA driver shows no device";
}

bool Driver::usable() const {
    Context current = nullptr;
    return !forked && cuCtxGetCurrent(&current) != deinitialized;
}

/// Leaked: tensors of Python's globals die after static objects do.
Driver& driver() {
    static std::atomic<Driver*> driver{nullptr};
    static std::mutex mutex;
    Driver* loaded = driver.load(std::memory_order_acquire);
    if (loaded && loaded->library) [[likely]]
        return *loaded;
    const std::lock_guard lock(mutex);
    loaded = driver.load();
    if (!loaded || !loaded->library) driver.store(loaded = new Driver);
    return *loaded;
}

int device_count() { return std::min(driver().devices, most_devices); }
std::string absence() { return driver().absence; }
int driver_version() { return driver().version; }

void check_process() {
    if (forked) [[unlikely]]
        fail(Kind::runtime,
             "[CUDA] this process was forked from one that had used CUDA, and cannot use it; start worker "
             "processes with the method 'forkserver' or 'spawn'");
}

void check_device(int device) {
    require(device_count() > 0, "[tensora] no CUDA device: ", absence(),
            "; use the device 'cpu', or ask cuda.is_available() before");
    require(device >= 0 && device < device_count(), "[tensora] no device 'cuda:", device, "'; there are ",
            device_count(), ", counted from 0");
    check_process();
}

bool is_out_of_memory(Result result) { return result == out_of_memory; }

void raise(Result result, const char* what) {
    const char *name = nullptr, *words = nullptr;
    driver().cuGetErrorName(result, &name);
    driver().cuGetErrorString(result, &words);
    const bool lost = std::find(fatal.begin(), fatal.end(), result) != fatal.end();
    constexpr const char* remedy =
        ". An earlier operation may have caused it. The device can do nothing more in this process: start a "
        "new one; CUDA_LAUNCH_BLOCKING=1 in its environment, or compute-sanitizer, shows the operation";
    fail(is_out_of_memory(result) ? Kind::device_memory : Kind::device, "[CUDA] ", what,
         " failed: ", name ? name : "unknown error", " (", words ? words : "no description", ")",
         lost ? remedy : "");
}

}  // namespace accelera::tensora::cuda
