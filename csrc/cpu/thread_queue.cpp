#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu/transfer_queue.h"

namespace accelera::io {
namespace {

/// Threads of the pool: enough for two reader threads and a writer thread with several requests each.
constexpr int pool_threads = 8;

int64_t carry_out(const Transfer& transfer) {
    const auto bytes = static_cast<size_t>(transfer.bytes);
    ssize_t moved;
    do
        moved = transfer.writing ? pwrite(transfer.file, transfer.address, bytes, transfer.offset)
                                 : pread(transfer.file, transfer.address, bytes, transfer.offset);
    while (moved < 0 && errno == EINTR);
    return moved < 0 ? -errno : moved;
}

/// Results of one thread's transfers.
class Results {
  public:
    Results() { finished_.reserve(TransferQueue::depth); }

    void add(const Finished& result) {
        const std::lock_guard lock(mutex_);
        finished_.push_back(result);
        changed_.notify_one();  // within the lock: the owner may end as soon as it has the result
    }

    int take(Finished (&finished)[TransferQueue::depth]) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !finished_.empty(); });
        int count = 0;
        for (const Finished& result : finished_) finished[count++] = result;
        finished_.clear();
        return count;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Finished> finished_;
};

struct Job {
    Transfer transfer;
    Results* results;
};

/// Threads that serve the queues of a process. They are never joined: a pool lasts as long as its process.
class Pool {
  public:
    Pool() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
        try {
            for (int i = 0; i < pool_threads; ++i) {
                std::thread([this] { work(); }).detach();
                ++started_;
            }
        } catch (const std::exception&) {  // fewer threads do, if there is one
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    bool works() const { return started_ > 0; }

    void post(const Job& job) {
        {
            const std::lock_guard lock(mutex_);
            jobs_.push_back(job);
        }
        changed_.notify_one();
    }

  private:
    [[noreturn]] void work() {
        for (;;) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return !jobs_.empty(); });
            const Job job = jobs_.front();
            jobs_.pop_front();
            lock.unlock();
            job.results->add({job.transfer.owner, carry_out(job.transfer)});
        }
    }

    int started_ = 0;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;
};

/// The pool of this process; a forked child has none of its parent's threads and makes its own.
Pool& pool() {
    static std::mutex making;
    static std::atomic<int> process{0};
    static Pool* made = nullptr;
    if (process.load(std::memory_order_acquire) != getpid()) {
        const std::lock_guard lock(making);
        if (process.load(std::memory_order_relaxed) != getpid()) {
            made = new Pool;  // never deleted: its threads use it until the process ends
            process.store(getpid(), std::memory_order_release);
        }
    }
    return *made;
}

class ThreadQueue final : public TransferQueue {
  public:
    ~ThreadQueue() override {
        if (process_ == getpid())
            delete results_;  // in a child, its lock may be that of a thread of the parent
    }

    bool usable() {
        try {
            if (process_ != getpid()) {
                results_ = new Results;
                process_ = getpid();
            }
            return pool().works();
        } catch (const std::exception&) {
            return false;
        }
    }

    bool submit(const Transfer& transfer) override {
        try {
            pool().post({transfer, results_});
            return true;
        } catch (const std::exception&) {
            return false;
        }
    }

    int wait(Finished (&finished)[depth]) override { return results_->take(finished); }

  private:
    Results* results_ = nullptr;
    int process_ = 0;
};

}  // namespace

TransferQueue* thread_queue() {
    thread_local ThreadQueue queue;
    return queue.usable() ? &queue : nullptr;
}

}  // namespace accelera::io
