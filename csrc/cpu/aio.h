#pragma once

#include <linux/aio_abi.h>

namespace accelera::io {

/// Requests on their way at once to an O_DIRECT descriptor: Linux native asynchronous I/O, which needs
/// no threads. One queue per thread; it lasts until the thread ends, as destroying one takes a while.
class AioQueue {
  public:
    static constexpr int depth = 32;

    static AioQueue& of_this_thread();

    /// Whether the kernel offers it to this process.
    bool usable();
    /// Hand over one request; false when the kernel refuses it.
    bool submit(iocb& request);
    /// Wait for at least one request; put what has finished into `ready` and return how many that are.
    int wait(io_event (&ready)[depth]);

    AioQueue(const AioQueue&) = delete;
    AioQueue& operator=(const AioQueue&) = delete;
    ~AioQueue();

  private:
    AioQueue() = default;

    aio_context_t context_ = 0;
    int process_ = 0;  ///< contexts do not survive fork
};

}  // namespace accelera::io
