#include "cpu/transfer_queue.h"

#if __has_include(<linux/aio_abi.h>)

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace accelera::io {
namespace {

/// Linux native asynchronous I/O, which needs no threads. It lasts until the thread ends, as destroying a
/// context takes a while.
class KernelQueue final : public TransferQueue {
  public:
    KernelQueue() : requests_(depth) {
        for (iocb& request : requests_) idle_.push_back(&request);
    }
    ~KernelQueue() override {
        if (context_ != 0 && process_ == getpid()) syscall(SYS_io_destroy, context_);
    }

    /// Whether the kernel offers a context to this process; contexts do not survive a fork.
    bool usable() {
        if (process_ != getpid()) {
            process_ = getpid();
            context_ = 0;
            if (syscall(SYS_io_setup, depth, &context_) != 0) context_ = 0;
        }
        return context_ != 0;
    }

    bool submit(const Transfer& transfer) override {
        if (idle_.empty()) return false;
        iocb& request = *idle_.back();
        request = {};
        request.aio_data = reinterpret_cast<uint64_t>(transfer.owner);
        request.aio_lio_opcode = transfer.writing ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
        request.aio_fildes = static_cast<uint32_t>(transfer.file);
        request.aio_buf = reinterpret_cast<uint64_t>(transfer.address);
        request.aio_nbytes = static_cast<uint64_t>(transfer.bytes);
        request.aio_offset = transfer.offset;
        iocb* requests[] = {&request};
        long taken;
        do taken = syscall(SYS_io_submit, context_, 1L, requests);
        while (taken < 0 && errno == EINTR);
        if (taken != 1) return false;
        idle_.pop_back();
        return true;
    }

    int wait(Finished (&finished)[depth]) override {
        io_event ready[depth];
        long count;
        do count = syscall(SYS_io_getevents, context_, 1L, static_cast<long>(depth), ready, nullptr);
        while (count < 0 && errno == EINTR);
        for (int i = 0; i < count; ++i) {
            finished[i] = {reinterpret_cast<void*>(ready[i].data), static_cast<int64_t>(ready[i].res)};
            idle_.push_back(reinterpret_cast<iocb*>(ready[i].obj));
        }
        return static_cast<int>(count);
    }

  private:
    std::vector<iocb> requests_;
    std::vector<iocb*> idle_;
    aio_context_t context_ = 0;
    int process_ = 0;
};

}  // namespace

TransferQueue* kernel_queue() {
    thread_local KernelQueue queue;
    return queue.usable() ? &queue : nullptr;
}

}  // namespace accelera::io

#else

namespace accelera::io {

TransferQueue* kernel_queue() { return nullptr; }

}  // namespace accelera::io

#endif
