#include "tensora/base/io_thread.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accelera::tensora {

namespace {
/// Enough for reads, writes and the library's thread-local memory; a budget's process may have few addresses.
constexpr size_t stack_bytes = size_t(128) << 10;
}  // namespace

void FileJob::carry_out() {
    for (int64_t moved = 0; moved < nbytes;) {
        const auto left = size_t(nbytes - moved);
        const ssize_t n = writes ? pwrite(file, data + moved, left, offset + moved)
                                 : pread(file, data + moved, left, offset + moved);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            error = n < 0 ? errno : EIO;
            return;
        }
        moved += n;
    }
}

IoThread::~IoThread() {
    leave_parent();
    if (started_) {
        {
            const std::lock_guard lock(queue_->mutex);
            queue_->stops = true;
        }
        queue_->filled.notify_one();
        pthread_join(thread_, nullptr);
    }
    delete queue_;
}

void IoThread::leave_parent() {
    const pid_t here = getpid();
    if (process_ == here) return;
    process_ = here;
    queue_ = nullptr;  // its lock may be held by a thread that is not here
    started_ = false;
}

void IoThread::start() {
    if (!queue_) queue_ = new Queue;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that know what to do
    started_ = pthread_create(&thread_, &attributes, work, queue_) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
}

void IoThread::begin(FileJob& job) {
    leave_parent();
    if (!started_) start();
    if (!started_) return;
    job.process = process_;
    {
        const std::lock_guard lock(queue_->mutex);
        *queue_->end = &job;
        queue_->end = &job.next;
    }
    queue_->filled.notify_one();
}

bool IoThread::take_back(FileJob& job) {
    leave_parent();
    if (job.process != process_) return job.state.load() != FileJob::State::done;
    std::unique_lock lock(queue_->mutex);
    for (FileJob** link = &queue_->first; *link; link = &(*link)->next)
        if (*link == &job) {
            *link = job.next;
            if (!job.next) queue_->end = link;
            return true;
        }
    queue_->done.wait(lock, [&] { return job.state.load() == FileJob::State::done; });
    return false;
}

void IoThread::wait(FileJob& job) {
    if (!take_back(job)) return;
    job.carry_out();
    job.state.store(FileJob::State::done);
}

void IoThread::cancel(FileJob& job) { take_back(job); }

void* IoThread::work(void* given) {
    Queue& queue = *static_cast<Queue*>(given);
    std::unique_lock lock(queue.mutex);
    for (;;) {
        queue.filled.wait(lock, [&] { return queue.first || queue.stops; });
        if (!queue.first) return nullptr;
        FileJob& job = *queue.first;
        queue.first = job.next;
        if (!queue.first) queue.end = &queue.first;
        job.state.store(FileJob::State::running);
        lock.unlock();
        job.carry_out();
        lock.lock();
        job.state.store(FileJob::State::done);
        queue.done.notify_all();
    }
}

}  // namespace accelera::tensora
