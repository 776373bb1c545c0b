#pragma once

#include <cstdint>
#include <type_traits>

namespace accelera::tensora {

/// Threads that work on one operation, the caller's among them.
int thread_count();
void set_thread_count(int n);

using Piece = void (*)(void* context, int64_t begin, int64_t end);
/// Call `piece` for ranges that together are [0, n), each at least `grain` long, on the pool's threads.
/// The caller helps, and while it waits asks whether it was interrupted. Called from within a piece, or while
/// another thread uses the pool, all runs in the caller. The first exception of a piece is raised here.
void parallel_ranges(int64_t n, int64_t grain, Piece piece, void* context);

template <typename Function>
void parallel_for(int64_t n, int64_t grain, Function&& function) {
    if (n <= grain) {
        if (n > 0) function(int64_t(0), n);
        return;
    }
    using Body = std::remove_reference_t<Function>;
    parallel_ranges(
        n, grain,
        [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&function)));
}

/// Run `job(context, i)` for each i below `n`, all at the same time: they may wait for one another. Within a
/// piece they get threads of their own.
void run_together(int n, void (*job)(void* context, int i), void* context);
/// Whether this thread is inside a piece.
bool inside_pool();

/// Elements below which an elementwise operation stays on one thread.
constexpr int64_t grain = 32768;

/// While it lives, other Python threads may run: long work that touches no Python object. Nests. Its
/// thread holds the interpreter's lock, as all do that Python calls, or is one of the pool.
class InterpreterReleased {
  public:
    InterpreterReleased();
    ~InterpreterReleased();
    InterpreterReleased(const InterpreterReleased&) = delete;

  private:
    void* state_;
};

class Capture;
class StepBudget;

/// What this thread is doing; read with every reference that Python counts.
struct ThreadState {
    bool lock_released = false;    ///< inside an InterpreterReleased
    bool in_piece = false;         ///< a thread of the pool, or its caller
    bool has_job = false;          ///< the pool works for this thread, maybe below a handler of a signal
    StepBudget* budget = nullptr;  ///< whose step it carries out, or helps to
    Capture* capture = nullptr;    ///< that its operations are told to
};
inline constinit thread_local ThreadState thread_state;

/// Whether this thread holds the interpreter's lock: it is no thread of the pool and inside no such block.
inline bool interpreter_held() { return !thread_state.lock_released && !thread_state.in_piece; }

/// How the lock is given up and taken again; set by the bindings.
void set_interpreter_lock(void* (*release)(), void (*restore)(void*));

}  // namespace accelera::tensora
