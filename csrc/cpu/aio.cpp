#include "cpu/aio.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace accelera::io {

AioQueue& AioQueue::of_this_thread() {
    thread_local AioQueue queue;
    return queue;
}

AioQueue::~AioQueue() {
    if (context_ != 0 && process_ == getpid()) syscall(SYS_io_destroy, context_);
}

bool AioQueue::usable() {
    if (process_ != getpid()) {
        process_ = getpid();
        context_ = 0;
        if (syscall(SYS_io_setup, depth, &context_) != 0) context_ = 0;
    }
    return context_ != 0;
}

bool AioQueue::submit(iocb& request) {
    iocb* requests[] = {&request};
    long taken;
    do taken = syscall(SYS_io_submit, context_, 1L, requests);
    while (taken < 0 && errno == EINTR);
    return taken == 1;
}

int AioQueue::wait(io_event (&ready)[depth]) {
    long count;
    do count = syscall(SYS_io_getevents, context_, 1L, static_cast<long>(depth), ready, nullptr);
    while (count < 0 && errno == EINTR);
    return static_cast<int>(count);
}

}  // namespace accelera::io
