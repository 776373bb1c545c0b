#include "tensora/base/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tensora/base/interrupt.h"

namespace accelera::tensora {

namespace {

/// Processors that a control group's quota leaves, or a large number.
int quota() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string most;
    double period = 0;
    if (!(file >> most >> period) || most == "max" || period <= 0) return 1 << 20;
    return std::max(1, int(std::lround(std::strtod(most.c_str(), nullptr) / period)));
}

int default_threads() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): read once, while the library is loaded
    const char* const variable = std::getenv("OMP_NUM_THREADS");
    const long threads = variable ? std::strtol(variable, nullptr, 10) : 0;
    if (threads > 0) return int(std::min<long>(threads, INT_MAX));
    cpu_set_t set;
    int n = int(std::thread::hardware_concurrency());
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
    return std::max(1, std::min(n, quota()));
}

/// One job at a time, worked on by the pool's threads and the caller. Its threads keep it alive.
class Pool : public std::enable_shared_from_this<Pool> {
  public:
    explicit Pool(int threads) : threads_(threads) {}

    /// Threads that a job may have, the caller's included. The others are started here, so that no job begins
    /// without them; where the system refuses one, the pool works on with those that it has.
    int threads() {
        if (is_started_.load(std::memory_order_acquire)) return threads_;
        const std::lock_guard lock(starting_);
        if (!is_started_.load(std::memory_order_relaxed)) {
            start(threads_ - 1);
            threads_ = int(helpers_.size()) + 1;
            is_started_.store(true, std::memory_order_release);
        }
        return threads_;
    }

    /// Call `work` once on each of `n` threads with its number; false, and nothing is called, where the pool
    /// was retired meanwhile.
    bool run(int n, void (*work)(void*, int), void* context) {
        bool asleep;
        {
            std::lock_guard lock(mutex_);
            if (is_retired_) return false;
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
        return true;
    }

    /// Let the threads end once they have nothing to do.
    void retire() {
        {
            const std::lock_guard lock(mutex_);
            is_retired_ = true;
        }
        begin_.notify_all();
    }

    std::mutex one_job;

  private:
    void start(int helpers) {
        helpers_.reserve(size_t(helpers));
        handles_.reserve(size_t(helpers));
        while (int(helpers_.size()) < helpers) {
            const int number = int(helpers_.size()) + 1;
            try {
                helpers_.emplace_back(
                    [self = shared_from_this(), number, round = round_] { self->help(number, round); });
            } catch (const std::system_error&) {
                return;  // a limit of processes
            }
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
            begin_.wait(lock, [&] { return round_ != seen || is_retired_; });
            --sleeping_;
            if (round_ == seen) return;
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

    int threads_;
    std::atomic<bool> is_started_{false};
    std::mutex starting_;
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
    bool is_retired_ = false;
    uint64_t round_ = 0;
    std::atomic<uint64_t> round_seen_{0};
    std::atomic<uint64_t> done_{0};
};

std::atomic<int> wished{0};

/// The pool that new work goes to.
struct Current {
    std::mutex mutex;
    std::shared_ptr<Pool> pool;
};

// Never destroyed: other threads may work when the process ends. A forked child has none of its parent's
// threads, and starts its own pool; the parent's is left alone, locked as it may be.
Current& current() {
    static Current* const one = [] {
        auto* const made = new Current;
        pthread_atfork([] { current().mutex.lock(); }, [] { current().mutex.unlock(); },
                       [] {
                           new std::shared_ptr<Pool>(std::move(current().pool));
                           current().mutex.unlock();
                       });
        return made;
    }();
    return *one;
}

std::shared_ptr<Pool> pool() {
    Current& one = current();
    const std::lock_guard lock(one.mutex);
    if (!one.pool) one.pool = std::make_shared<Pool>(wished.load() ? wished.load() : default_threads());
    return one.pool;
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

/// This thread is inside a piece until the end of the scope.
class InPiece {
  public:
    InPiece()
        : in_piece_(std::exchange(thread_state.in_piece, true)),
          has_job_(std::exchange(thread_state.has_job, true)) {}
    ~InPiece() {
        thread_state.in_piece = in_piece_;
        thread_state.has_job = has_job_;
    }
    InPiece(const InPiece&) = delete;

  private:
    bool in_piece_, has_job_;
};

/// A thread for a job that others wait for. A limit of threads is waited for: nothing else could be done.
template <typename Function>
std::thread start_thread(const Function& function) {
    for (int left_ms = 10'000;; --left_ms) {
        try {
            return std::thread(function);
        } catch (const std::system_error&) {
            if (left_ms == 0) std::terminate();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
}

/// Run jobs that may wait for one another on threads of their own: the pool's have another job.
void run_on_new_threads(int n, void (*job)(void*, int), void* context) {
    const InPiece inside;
    std::vector<std::thread> others;
    others.reserve(size_t(n));
    for (int i = 1; i < n; ++i)
        others.push_back(start_thread([=] {
            thread_state.in_piece = true;
            job(context, i);
        }));
    job(context, 0);
    for (std::thread& other : others) other.join();
}

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

int thread_count() { return pool()->threads(); }

void set_thread_count(int n) {
    std::shared_ptr<Pool> before;
    {
        const std::lock_guard lock(current().mutex);
        wished.store(n);
        before = std::move(current().pool);
    }
    if (before) before->retire();
}

bool inside_pool() { return thread_state.in_piece; }

void parallel_ranges(int64_t n, int64_t least, Piece piece, void* context) {
    const InterpreterReleased released;
    const std::shared_ptr<Pool> workers = pool();
    const int64_t max_pieces = std::max<int64_t>(1, n / std::max<int64_t>(least, 1));
    const int threads = int(std::min<int64_t>(workers->threads(), max_pieces));
    // Several pieces for each thread, so that one that is held up does not hold up all; none so long that an
    // interrupt would wait for it.
    const int64_t pieces = std::min<int64_t>(max_pieces, int64_t(threads) * 8);
    const int64_t step = std::min((n + pieces - 1) / pieces, 8 * std::max<int64_t>(least, 1));
    Ranges ranges(piece, context, n, step);
    std::unique_lock alone(workers->one_job, std::defer_lock);
    bool has_run = false;
    if (threads > 1 && !thread_state.has_job && !thread_state.in_piece && alone.try_lock()) {
        const InPiece inside;
        has_run = workers->run(
            threads, [](void* work, int i) { static_cast<Ranges*>(work)->work(i == 0); }, &ranges);
    }
    if (!has_run) ranges.work(!thread_state.in_piece);
    if (ranges.error) std::rethrow_exception(ranges.error);
}

void run_together(int n, void (*job)(void*, int), void* context) {
    const std::shared_ptr<Pool> workers = pool();
    // A handler of a signal that interrupted a job must not wait for that job. More jobs than threads: the
    // number of threads was changed meanwhile.
    if (thread_state.has_job || thread_state.in_piece || n > workers->threads())
        return run_on_new_threads(n, job, context);
    const std::lock_guard alone(workers->one_job);
    const InPiece inside;
    if (!workers->run(n, job, context)) run_on_new_threads(n, job, context);
}

}  // namespace accelera::tensora
