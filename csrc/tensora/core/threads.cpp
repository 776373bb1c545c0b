#include "tensora/core/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tensora/core/autograd.h"

namespace accelera::tensora {

namespace {

/// Processors that a control group's quota leaves, or a large number.
int quota() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string most;
    double period = 0;
    if (!(file >> most >> period) || most == "max" || period <= 0) return 1 << 20;
    return std::max(1, int(std::atof(most.c_str()) / period + 0.5));
}

int default_threads() {
    if (const char* wish = std::getenv("OMP_NUM_THREADS"); wish && std::atoi(wish) > 0)
        return std::atoi(wish);
    cpu_set_t set;
    int n = int(std::thread::hardware_concurrency());
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
    return std::max(1, std::min(n, quota()));
}

/// One job at a time, worked on by the pool's threads and the caller.
class Pool {
  public:
    explicit Pool(int threads) : threads_(threads) {}

    int threads() const { return threads_; }

    /// `work` is called once on each of `n` threads with its number.
    void run(int n, void (*work)(void*, int), void* context) {
        start(n - 1);
        bool asleep;
        {
            std::lock_guard lock(mutex_);
            asleep = sleeping_ > 0;
            work_ = work;
            context_ = context;
            budget_ = thread_state.budget;
            wanted_ = n - 1;
            left_ = n - 1;
            ++round_;
        }
        round_seen_.store(round_, std::memory_order_release);
        if (asleep) keep_apart(n - 1);
        begin_.notify_all();
        work(context, 0);
        wait();
    }

    std::mutex one_job;

  private:
    void start(int helpers) {
        while (int(helpers_.size()) < helpers) {
            const int number = int(helpers_.size()) + 1;
            helpers_.emplace_back([this, number, round = round_] { help(number, round); });
            handles_.push_back(helpers_.back().native_handle());
            helpers_.back().detach();
        }
    }

    /// Let threads that are about to wake do so on other processors than the caller's: some kernels wake them
    /// on the caller's, where they wait for it, and move them only some milliseconds later.
    void keep_apart(int helpers) {
        cpu_set_t set;
        if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) != 0 || CPU_COUNT(&set) < 2) return;
        const int here = sched_getcpu();
        if (here >= 0) CPU_CLR(size_t(here), &set);
        for (int i = 0; i < helpers; ++i) pthread_setaffinity_np(handles_[size_t(i)], sizeof set, &set);
    }

    void help(int number, uint64_t seen) {
        thread_state.in_piece = true;
        while (true) {
            // A job often follows the last one at once: look for it a while before sleeping.
            for (int i = 0; i < 2000 && round_seen_.load(std::memory_order_acquire) == seen; ++i)
                __builtin_ia32_pause();
            std::unique_lock lock(mutex_);
            ++sleeping_;
            begin_.wait(lock, [&] { return round_ != seen; });
            --sleeping_;
            seen = round_;
            if (number > wanted_) continue;
            const auto work = work_;
            void* const context = context_;
            thread_state.budget = budget_;
            lock.unlock();
            work(context, number);
            thread_state.budget = nullptr;
            lock.lock();
            if (--left_ == 0) {
                done_.store(seen, std::memory_order_release);
                end_.notify_one();
            }
        }
    }

    void wait() {
        for (int i = 0; i < 2000; ++i) {
            if (done_.load(std::memory_order_acquire) == round_) return;
            __builtin_ia32_pause();
        }
        std::unique_lock lock(mutex_);
        end_.wait(lock, [&] { return left_ == 0; });
    }

    const int threads_;
    std::vector<std::thread> helpers_;
    std::vector<pthread_t> handles_;
    std::mutex mutex_;
    std::condition_variable begin_, end_;
    void (*work_)(void*, int) = nullptr;
    void* context_ = nullptr;
    StepBudget* budget_ = nullptr;
    int wanted_ = 0;
    int left_ = 0;
    int sleeping_ = 0;
    uint64_t round_ = 0;
    std::atomic<uint64_t> round_seen_{0};
    std::atomic<uint64_t> done_{0};
};

// Leaked, also after a fork: a child has none of its parent's threads and begins with a pool of its own.
std::atomic<Pool*> the_pool{nullptr};
std::atomic<int> wished{0};

Pool& pool() {
    Pool* one = the_pool.load(std::memory_order_acquire);
    if (one) [[likely]]
        return *one;
    static const bool registered = [] {
        pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
        return true;
    }();
    (void)registered;
    Pool* const made = new Pool(wished.load() ? wished.load() : default_threads());
    if (!the_pool.compare_exchange_strong(one, made)) {
        delete made;
        return *one;
    }
    return *made;
}

struct Ranges {
    Ranges(Piece piece, void* context, int64_t n, int64_t step)
        : piece(piece), context(context), n(n), step(step) {}

    Piece piece;
    void* context;
    int64_t n;
    int64_t step;
    std::atomic<int64_t> next{0};
    std::atomic<bool> stopped{false};
    std::mutex mutex;
    std::exception_ptr error;

    void work(bool is_caller) {
        auto last = std::chrono::steady_clock::now();
        while (!stopped.load(std::memory_order_relaxed)) {
            const int64_t begin = next.fetch_add(step, std::memory_order_relaxed);
            if (begin >= n) return;
            try {
                piece(context, begin, std::min(begin + step, n));
                if (!is_caller) continue;
                const auto now = std::chrono::steady_clock::now();
                if (now - last < std::chrono::milliseconds(50)) continue;
                last = now;
                check_interrupt();
            } catch (...) {
                stopped.store(true);
                std::lock_guard lock(mutex);
                if (!error) error = std::current_exception();
            }
        }
    }
};

void* (*release_lock)() = nullptr;
void (*restore_lock)(void*) = nullptr;

}  // namespace

void set_interpreter_lock(void* (*release)(), void (*restore)(void*)) {
    release_lock = release;
    restore_lock = restore;
}

InterpreterReleased::InterpreterReleased()
    : state_(release_lock && !thread_state.in_piece && !thread_state.lock_released ? release_lock()
                                                                                   : nullptr) {
    if (state_) thread_state.lock_released = true;
}
InterpreterReleased::~InterpreterReleased() {
    if (!state_) return;
    restore_lock(state_);
    thread_state.lock_released = false;
}

int thread_count() { return pool().threads(); }

void set_thread_count(int n) {
    wished.store(n);
    the_pool.store(nullptr);
}

bool inside_pool() { return thread_state.in_piece; }

void parallel_ranges(int64_t n, int64_t least, Piece piece, void* context) {
    const InterpreterReleased released;
    Pool& workers = pool();
    const int64_t most = std::max<int64_t>(1, n / std::max<int64_t>(least, 1));
    const int threads = int(std::min<int64_t>(workers.threads(), most));
    // Several pieces for each thread, so that one that is held up does not hold up all; none so long that an
    // interrupt would wait for it.
    const int64_t pieces = std::min<int64_t>(most, int64_t(threads) * 8);
    const int64_t step = std::min((n + pieces - 1) / pieces, 8 * std::max<int64_t>(least, 1));
    Ranges ranges(piece, context, n, step);
    std::unique_lock alone(workers.one_job, std::defer_lock);
    if (threads == 1 || thread_state.in_piece || !alone.try_lock()) {
        ranges.work(!thread_state.in_piece);
    } else {
        thread_state.in_piece = true;
        workers.run(threads, [](void* given, int i) { static_cast<Ranges*>(given)->work(i == 0); }, &ranges);
        thread_state.in_piece = false;
    }
    if (ranges.error) std::rethrow_exception(ranges.error);
}

void run_together(int n, void (*job)(void*, int), void* context) {
    std::lock_guard alone(pool().one_job);
    thread_state.in_piece = true;
    pool().run(n, job, context);
    thread_state.in_piece = false;
}

}  // namespace accelera::tensora
