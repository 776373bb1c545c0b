#pragma once

namespace accelera::tensora {

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

/// What this thread is doing; read with every reference that Python counts.
struct ThreadState {
    bool lock_released = false;  ///< inside an InterpreterReleased
    bool in_piece = false;       ///< a thread of the pool, or its caller
};
inline constinit thread_local ThreadState thread_state;

/// Whether this thread holds the interpreter's lock: it is no thread of the pool and inside no such block.
inline bool interpreter_held() { return !thread_state.lock_released && !thread_state.in_piece; }

/// How the lock is given up and taken again; set by the bindings.
void set_interpreter_lock(void* (*release)(), void (*restore)(void*));

}  // namespace accelera::tensora
