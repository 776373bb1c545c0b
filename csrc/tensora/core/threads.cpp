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
#include <system_error>
#include <thread>
#include <utility>
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

    /// `work` is called once on each of `n` threads with its number.
    void run(int n, void (*work)(void*, int), void* context) {
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
    /// The thread whose job the pool works on. A signal's handler may run on it, and use the pool as well.
    std::atomic<std::thread::id> owner{};

  private:
    void start(int helpers) {
        helpers_.reserve(size_t(helpers));
        while (int(helpers_.size()) < helpers) {
            const int number = int(helpers_.size()) + 1;
            try {
                helpers_.emplace_back([this, number, round = round_] { help(number, round); });
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

/// The pool belongs to this thread, which is inside a piece, until the end of the scope.
class Job {
  public:
    explicit Job(Pool& pool) : pool_(pool), before_(std::exchange(thread_state.in_piece, true)) {
        pool_.owner.store(std::this_thread::get_id());
    }
    ~Job() {
        pool_.owner.store({});
        thread_state.in_piece = before_;
    }
    Job(const Job&) = delete;

  private:
    Pool& pool_;
    bool before_;
};

/// Run jobs that may wait for one another on threads of their own: this thread's job has the pool.
void run_on_new_threads(int n, void (*job)(void*, int), void* context) {
    const bool before = std::exchange(thread_state.in_piece, true);
    std::vector<std::thread> others;
    for (int i = 1; i < n; ++i)
        others.emplace_back([=] {
            thread_state.in_piece = true;
            job(context, i);
        });
    job(context, 0);
    for (std::thread& other : others) other.join();
    thread_state.in_piece = before;
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
        const Job job(workers);
        workers.run(threads, [](void* given, int i) { static_cast<Ranges*>(given)->work(i == 0); }, &ranges);
    }
    if (ranges.error) std::rethrow_exception(ranges.error);
}

void run_together(int n, void (*job)(void*, int), void* context) {
    Pool& workers = pool();
    // More jobs than threads: the number of threads was changed meanwhile.
    if (workers.owner.load() == std::this_thread::get_id() || n > workers.threads())
        return run_on_new_threads(n, job, context);
    const std::lock_guard alone(workers.one_job);
    const Job own(workers);
    workers.run(n, job, context);
}

}  // namespace accelera::tensora
