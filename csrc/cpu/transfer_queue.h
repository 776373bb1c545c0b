#pragma once

#include <cstdint>

namespace accelera::io {

/// One read or write of an O_DIRECT descriptor.
struct Transfer {
    bool writing;
    int file;
    char* address;
    int64_t bytes, offset;
    void* owner;  ///< comes back with the result
};

/// A transfer that has ended: the bytes that it moved, or a negative errno.
struct Finished {
    void* owner;
    int64_t moved;
};

/// Transfers of one thread that are under way at once.
class TransferQueue {
  public:
    static constexpr int depth = 32;

    /// The queue of this thread; null where the chosen backend does not work.
    static TransferQueue* of_this_thread();

    /// Begin a transfer; false when it cannot begin.
    virtual bool submit(const Transfer& transfer) = 0;
    /// Wait for at least one transfer that was begun; return how many results were put into `finished`.
    virtual int wait(Finished (&finished)[depth]) = 0;

    TransferQueue() = default;
    TransferQueue(const TransferQueue&) = delete;
    TransferQueue& operator=(const TransferQueue&) = delete;
    virtual ~TransferQueue() = default;
};

/// What moves the bytes: asynchronous I/O of the Linux kernel, a pool of threads, or the first that works.
enum class Backend { automatic, kernel, threads };

/// Choose the backend of all threads; transfers under way end on theirs.
void set_backend(Backend backend);

/// The kernel's queue of this thread; null where the kernel does not offer one to this process.
TransferQueue* kernel_queue();
/// A queue of this thread that the pool of threads serves; works everywhere.
TransferQueue* thread_queue();

}  // namespace accelera::io
