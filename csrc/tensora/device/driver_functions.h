#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensora/device/driver.h"

/// Functions of the CUDA driver, by their names there, and their errors.
namespace accelera::tensora::cuda {

using Result = int;
using DeviceNumber = int;
using Context = void*;
using Event = void*;
using Pool = void*;
using Module = void*;
using Address = unsigned long long;

/// CUmemPoolProps
struct PoolProperties {
    int allocation = 1;  ///< memory that stays where it is
    int handles = 0;     ///< of other processes: none
    int place = 1;       ///< a device
    int device = 0;
    void* security = nullptr;
    size_t most_bytes = 0;
    unsigned short usage = 0;
    unsigned char reserved[54] = {};
};

struct Driver {
    void* library = nullptr;
    std::string absence;
    int devices = 0;
    int version = 0;  ///< 12040 for CUDA 12.4, the newest that the driver takes code of

    Result (*cuInit)(unsigned);
    Result (*cuDriverGetVersion)(int*);
    Result (*cuDeviceGetCount)(int*);
    Result (*cuDeviceGet)(DeviceNumber*, int);
    Result (*cuDeviceGetName)(char*, int, DeviceNumber);
    Result (*cuDeviceGetAttribute)(int*, int, DeviceNumber);
    Result (*cuDeviceTotalMem_v2)(size_t*, DeviceNumber);
    Result (*cuDevicePrimaryCtxRetain)(Context*, DeviceNumber);
    Result (*cuCtxGetCurrent)(Context*);
    Result (*cuCtxSetCurrent)(Context);
    Result (*cuCtxSynchronize)();
    Result (*cuMemGetInfo_v2)(size_t*, size_t*);
    Result (*cuMemPoolCreate)(Pool*, const PoolProperties*);
    Result (*cuMemPoolSetAttribute)(Pool, int, void*);
    Result (*cuMemPoolGetAttribute)(Pool, int, void*);
    Result (*cuMemPoolTrimTo)(Pool, size_t);
    Result (*cuMemAllocFromPoolAsync)(Address*, size_t, Pool, Stream);
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
    Result (*cuEventQuery)(Event);
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
    /// Whether calls reach it: not when the process ends, or was forked after the driver had started.
    bool usable() const;

  private:
    template <typename Pointer>
    void find(Pointer& pointer, const char* name);
    void find_all();
    void load();
    void start();
};

/// The driver; one that was not found is looked for again.
Driver& driver();

bool is_out_of_memory(Result result);
/// Raise the error of a driver's function. `what` names the work: "to make a stream".
[[noreturn]] void raise(Result result, const char* what);
inline void check(Result result, const char* what) {
    if (result != 0) [[unlikely]]
        raise(result, what);
}
inline Address address(const void* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace accelera::tensora::cuda
