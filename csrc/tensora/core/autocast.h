#pragma once

#include <span>
#include <vector>

#include "tensora/core/op.h"

/// Mixed precision: while a block is open, operations of this thread have their inputs cast to the type that
/// their entry in the op table names (`Op::autocast`).
namespace accelera::tensora {

/// Whether inputs are cast now: a block is open, and nothing has paused it.
extern constinit thread_local bool autocasting;

/// Mixed precision of operations on one kind of device.
struct Autocast {
    bool enabled;
    DType lower;  ///< float16 or bfloat16
};

/// What the innermost block of this thread says of the CPU or of CUDA devices; off outside of blocks.
Autocast autocast_of(bool on_cuda);
/// Open a block. `cache`: leaves that are cast are kept, so that a weight is cast once for all its uses.
void open_autocast(bool on_cuda, const Autocast& autocast, bool cache);
/// Close the innermost block of this thread; the outermost one lets the cast leaves go.
void close_autocast();

/// The type that an operation of this precision has a tensor in, unless others beside it are wider.
DType autocast_type(Precision precision, const Tensor& tensor);
/// The inputs in the type that an operation of this precision computes in. Only real floating-point tensors
/// are cast, and float64 is left alone.
std::vector<T> autocast_inputs(Precision precision, std::span<const T> inputs);

/// While it lives, nothing is cast: a kernel, a gradient, an operation in place, or a function that is cast
/// as a whole.
class AutocastPause {
  public:
    AutocastPause() : before_(autocasting) { autocasting = false; }
    ~AutocastPause() { autocasting = before_; }
    AutocastPause(const AutocastPause&) = delete;

  private:
    bool before_;
};

}  // namespace accelera::tensora
