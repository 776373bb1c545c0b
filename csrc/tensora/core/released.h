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

/// Whether this thread holds the interpreter's lock: it is no thread of the pool and inside no such block.
bool interpreter_held();

/// How the lock is given up and taken again; set by the bindings.
void set_interpreter_lock(void* (*release)(), void (*restore)(void*));

}  // namespace accelera::tensora
