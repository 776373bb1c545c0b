#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// The CUDA driver, loaded while running: nothing of CUDA is needed to build, and machines without it have 0
/// devices.
namespace accelera::tensora::cuda {

using Stream = void*;
using Function = void*;

constexpr int most_devices = 64;

/// Devices that the driver shows; 0 where there is no driver.
int device_count();
/// Why there are none.
std::string absence();
/// Version of CUDA that the driver has, as 12040 for 12.4; 0 where there is no driver.
int driver_version();
/// Raises where this device does not exist, or this process cannot use it.
void check_device(int device);
/// Raises in a process that was forked from one that had used the driver.
void check_process();

/// Make a device's context the thread's current one; returns the one before, for the end.
void* enter_context(int device);
void leave_context(void* before);

class UsedDevice;
/// While it lives, a device's context is the thread's current one: for libraries that take it from there.
class ContextScope {
  public:
    explicit ContextScope(int device);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;

  private:
    std::unique_ptr<UsedDevice> used_;
};

struct Properties {
    std::string name;
    int64_t memory_bytes;
    int major, minor;  ///< compute capability
    int processors;
};
const Properties& properties(int device);

/// Bytes of the device that are free, and bytes that the pool keeps without a tensor in them.
struct FreeBytes {
    int64_t on_device, in_pool;
};
FreeBytes free_bytes(int device);

/// Memory of the stream-ordered pool. Null when the device has not that much.
char* take_from_pool(int device, int64_t nbytes);
/// The memory is free once `stream` (null: the device's own) comes that far.
void give_to_pool(int device, char* memory, Stream stream);
/// The same, or a block of the steps that are watched (see graph.h).
char* take_memory(int device, int64_t nbytes);
void give_memory(int device, char* memory, Stream stream);
/// What the pool keeps goes back to the device, after all work or without a wait.
void trim_pool(int device);
void release_cached(int device);

/// The stream that this thread's operations on a device go to.
Stream current_stream(int device);
void set_stream(int device, Stream stream);  ///< null: the device's own again
/// The same, but while the thread captures a graph the one that it gave work to before.
Stream caller_stream(int device);
/// One of the device's other streams, which are few and never end.
Stream make_stream(int device);
/// What comes to `later` waits for what was given to `earlier` so far.
void order_streams(int device, Stream earlier, Stream later);
/// Wait for a stream, or for all that the device was given.
void wait_for(int device, Stream stream);
void synchronize(int device);
/// Wait for a stream, and raise nothing.
void finish(int device, Stream stream) noexcept;

/// Call `release` once what a stream was given so far is done: now, or in a later call of one of these
/// functions and of those that wait.
void release_after(int device, Stream stream, const std::function<void()>& release);
void release_finished();
/// What comes to `later` waits for what an importer's stream was given so far. Raises nothing: where the
/// importer's stream takes no event, all work of the device ends here.
void order_after_importer(int device, Stream importer, Stream later) noexcept;

/// Memory of the host that a device's copies reach without a detour; null when there is none.
char* take_host_memory(int device, int64_t nbytes);
void give_host_memory(int device, char* memory) noexcept;
// Copies in the order of a stream, which have not ended on return.
void begin_copy_to_device(int device, char* to, const void* from, int64_t nbytes, Stream stream);
void begin_copy_to_host(int device, void* to, const char* from, int64_t nbytes, Stream stream);

// All copies below are in the order of the thread's stream; those to the host have ended on return.
void copy_to_device(int device, char* to, const void* from, int64_t nbytes);
void copy_to_host(int device, void* to, const char* from, int64_t nbytes);
void copy_within(int device, char* to, const char* from, int64_t nbytes);
void fill_bytes(int device, char* to, int value, int64_t nbytes);

/// A kernel from a module of machine code. `name` is the one in the code, and in errors.
Function load_function(int device, const std::string& code, const char* name);

struct Launch {
    int64_t blocks;
    int threads = 256;
};
/// Put a kernel into the thread's stream. `arguments` is the kernel's one parameter, a struct.
void launch(int device, Function function, const char* name, const Launch& launch, void* arguments);

/// Whether the driver has graphs: work that is put together once and launched many times (see graph.h).
bool has_graphs();
/// From now on this thread's work on the device goes to a graph, on a stream of its own.
void begin_graph(int device);
/// Its end, and where it is to be `used` the graph made ready; null where it is not.
void* end_graph(int device, bool used);
void launch_graph(int device, void* graph);
void drop_graph(int device, void* graph) noexcept;

/// A function of a library that is loaded while running, or null.
void* symbol(void* library, const char* name);
/// The first of these libraries that is there, or null. The system's come first, then those of packages.
void* open_library(const std::vector<std::string>& names);
/// Names of a library of CUDA in the versions that the driver takes code of, newest first.
std::vector<std::string> versions_of(const std::string& library);
/// Newest major version of CUDA that the driver takes code of; the newest known without a driver.
int newest_major();
/// Set the files of libraries that came in packages.
void set_packaged_libraries(const std::vector<std::string>& paths);

}  // namespace accelera::tensora::cuda
