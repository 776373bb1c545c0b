// Devices, their contexts and memory, copies and launches.
#include "tensora/device/driver.h"

#include <array>
#include <mutex>

#include "tensora/base/base.h"
#include "tensora/base/threads.h"
#include "tensora/device/device_state.h"
#include "tensora/device/graph.h"

namespace accelera::tensora::cuda {

namespace {
constexpr int attribute_major = 75, attribute_minor = 76, attribute_processors = 16, attribute_pools = 115;
constexpr int pool_threshold = 4, pool_reserved = 5, pool_used = 7;
// A blocking stream is in order with the default stream, which PyTorch, CuPy and JAX use unless the
// user selects another.
constexpr unsigned blocking_stream = 0;

int read_attribute(int attribute, DeviceNumber number) {
    int value = 0;
    check(driver().cuDeviceGetAttribute(&value, attribute, number), "to read an attribute");
    return value;
}
}  // namespace

// --- devices and contexts

CurrentContext::CurrentContext(Context context) {
    check(driver().cuCtxGetCurrent(&before_), "to read the current context");
    if (before_ == context) return;
    check(driver().cuCtxSetCurrent(context), "to use a context");
    changed_ = true;
}

CurrentContext::~CurrentContext() {
    if (changed_) driver().cuCtxSetCurrent(before_);
}

DeviceState::DeviceState(int index) {
    Driver& d = driver();
    check(d.cuDeviceGet(&number, index), "to find the device");
    read_properties();
    check(d.cuDevicePrimaryCtxRetain(&context, number), "to make a context");
    const CurrentContext current(context);
    make_pool(index);
    check(d.cuStreamCreate(&stream, blocking_stream), "to make a stream");
}

void DeviceState::read_properties() {
    Driver& d = driver();
    char name[256] = "";
    size_t total = 0;
    check(d.cuDeviceGetName(name, sizeof(name), number), "to read the device's name");
    check(d.cuDeviceTotalMem_v2(&total, number), "to read the device's memory");
    properties.name = name;
    properties.memory_bytes = int64_t(total);
    properties.major = read_attribute(attribute_major, number);
    properties.minor = read_attribute(attribute_minor, number);
    properties.processors = read_attribute(attribute_processors, number);
}

/// A pool that only tensors use: the device's default pool belongs to all libraries of the process.
void DeviceState::make_pool(int index) {
    if (!read_attribute(attribute_pools, number))
        fail(Kind::device, "[tensora] cuda:", index, " (", properties.name,
             ") has no stream-ordered memory pools, which tensors need; use a device or a driver that has "
             "them");
    PoolProperties pool_properties;
    pool_properties.device = number;
    check(driver().cuMemPoolCreate(&pool, &pool_properties), "to make a memory pool");
    uint64_t keep_all = UINT64_MAX;
    check(driver().cuMemPoolSetAttribute(pool, pool_threshold, &keep_all), "to set up the memory pool");
}

DeviceState& device_state(int device) {
    static std::array<std::atomic<DeviceState*>, most_devices> all{};
    static std::mutex mutex;
    check_process();
    if (device >= 0 && device < most_devices)
        if (DeviceState* const known = all[size_t(device)].load(std::memory_order_acquire)) return *known;
    check_device(device);
    const std::lock_guard lock(mutex);
    if (!all[size_t(device)]) all[size_t(device)] = new DeviceState(device);
    return *all[size_t(device)];
}

const Properties& properties(int device) { return device_state(device).properties; }

ContextScope::ContextScope(int device) : used_(std::make_unique<UsedDevice>(device)) {}
ContextScope::~ContextScope() = default;

void* enter_context(int device) {
    Context before = nullptr;
    check(driver().cuCtxGetCurrent(&before), "to read the current context");
    check(driver().cuCtxSetCurrent(device_state(device).context), "to use a context");
    return before;
}

void leave_context(void* before) { check(driver().cuCtxSetCurrent(before), "to use a context"); }

// --- memory

FreeBytes free_bytes(int device) {
    const UsedDevice used(device);
    size_t free = 0, total = 0;
    uint64_t reserved = 0, in_use = 0;
    check(driver().cuMemGetInfo_v2(&free, &total), "to read the free memory");
    check(driver().cuMemPoolGetAttribute(used->pool, pool_reserved, &reserved), "to read the memory pool");
    check(driver().cuMemPoolGetAttribute(used->pool, pool_used, &in_use), "to read the memory pool");
    return {int64_t(free), int64_t(reserved - in_use)};
}

char* take_memory(int device, int64_t nbytes) {
    Watch* const watch = Watch::here();
    return watch && watch->memory().device() == device ? watch->take(nbytes) : take_from_pool(device, nbytes);
}

void give_memory(int device, char* memory, Stream stream) {
    Watch* const watch = Watch::here();
    if (watch && watch->memory().give(memory)) return;
    give_to_pool(device, memory, Watch::is_capturing() ? stream_before_capture() : stream);
}

/// Memory that other streams have freed is there when they have come that far: before giving up, all end.
char* take_from_pool(int device, int64_t nbytes) {
    const UsedDevice used(device);
    const Stream stream = current_stream(device);
    Address address = 0;
    const auto take = [&] {
        return driver().cuMemAllocFromPoolAsync(&address, size_t(std::max<int64_t>(nbytes, 1)), used->pool,
                                                stream);
    };
    Result result = take();
    for (int attempt = 0; attempt < 2 && is_out_of_memory(result); ++attempt) {
        check(attempt ? driver().cuCtxSynchronize() : driver().cuStreamSynchronize(stream),
              "to wait for memory");
        release_finished();
        driver().cuMemPoolTrimTo(used->pool, 0);
        result = take();
    }
    if (is_out_of_memory(result)) return nullptr;
    check(result, "to allocate memory");
    return reinterpret_cast<char*>(address);
}

void give_to_pool(int device, char* memory, Stream stream) {
    if (!driver().usable()) return;
    const UsedDevice used(device);
    driver().cuMemFreeAsync(address(memory), stream ? stream : used->stream);
}

void trim_pool(int device) {
    synchronize(device);
    release_cached(device);
}

void release_cached(int device) {
    const UsedDevice used(device);
    check(driver().cuMemPoolTrimTo(used->pool, 0), "to empty the memory pool");
}

char* take_host_memory(int device, int64_t nbytes) {
    const UsedDevice used(device);
    void* found = nullptr;
    return driver().cuMemAllocHost_v2(&found, size_t(nbytes)) == 0 ? static_cast<char*>(found) : nullptr;
}

void give_host_memory(int device, char* memory) noexcept {
    if (!driver().usable()) return;
    try {
        const UsedDevice used(device);
        driver().cuMemFreeHost(memory);
    } catch (const Error&) {
        // The context is lost, and its pinned memory with it.
    }
}

// --- copies: the driver waits inside of those with memory of the host that is not pinned, while other Python
// threads run

void begin_copy_to_device(int device, char* to, const void* from, int64_t nbytes, Stream stream) {
    Watch::note("a copy to the device");
    const UsedDevice used(device);
    check(driver().cuMemcpyHtoDAsync_v2(address(to), from, size_t(nbytes), stream), "a copy to the device");
}

void begin_copy_to_host(int device, void* to, const char* from, int64_t nbytes, Stream stream) {
    Watch::note("a copy from the device");
    const UsedDevice used(device);
    check(driver().cuMemcpyDtoHAsync_v2(to, address(from), size_t(nbytes), stream), "a copy from the device");
}

void copy_to_device(int device, char* to, const void* from, int64_t nbytes) {
    if (nbytes == 0) return;
    const Stream stream = current_stream(device);
    const InterpreterReleased released;
    begin_copy_to_device(device, to, from, nbytes, stream);
    wait_for(device, stream);  // the caller may write to `from` now
}

void copy_to_host(int device, void* to, const char* from, int64_t nbytes) {
    if (nbytes == 0) return;
    const Stream stream = current_stream(device);
    const InterpreterReleased released;
    begin_copy_to_host(device, to, from, nbytes, stream);
    wait_for(device, stream);
}

void copy_within(int device, char* to, const char* from, int64_t nbytes) {
    if (nbytes == 0 || to == from) return;  // the driver does not define copies between ranges that overlap
    const UsedDevice used(device);
    check(driver().cuMemcpyDtoDAsync_v2(address(to), address(from), size_t(nbytes), current_stream(device)),
          "a copy on the device");
}

void fill_bytes(int device, char* to, int value, int64_t nbytes) {
    if (nbytes == 0) return;
    const UsedDevice used(device);
    check(driver().cuMemsetD8Async(address(to), static_cast<unsigned char>(value), size_t(nbytes),
                                   current_stream(device)),
          "to fill memory");
}

// --- kernels

Function load_function(int device, const std::string& code, const char* name) {
    const UsedDevice used(device);
    Module module = nullptr;
    Function function = nullptr;
    check(driver().cuModuleLoadData(&module, code.data()), name);
    check(driver().cuModuleGetFunction(&function, module, name), name);
    return function;
}

void launch(int device, Function function, const char* name, const Launch& launch, void* arguments) {
    if (launch.blocks <= 0) return;
    const UsedDevice used(device);
    const int64_t max_blocks = int64_t(used->properties.processors) * 32;
    void* parameters[] = {arguments};
    check(driver().cuLaunchKernel(function, unsigned(std::min(launch.blocks, max_blocks)), 1, 1,
                                  unsigned(launch.threads), 1, 1, 0, current_stream(device), parameters,
                                  nullptr),
          name);
}

}  // namespace accelera::tensora::cuda
