#pragma once

#include "tensora/core/op.h"

namespace accelera::tensora {

/// Rule and kernel of all entries whose loops come from kernels/formulas.def: inputs are promoted to one type
/// and broadcast to one shape.
void elementwise_rule(Call& call);
void elementwise_kernel(Call& call);

/// Type of integers and bools where an operation is only defined for inexact numbers.
DType default_float();
void set_default_float(DType dtype);

/// `out` = op(inputs), written over `out`'s elements; for operations in place whose result is not recorded.
bool write_elementwise(const Op& op, std::span<const T> inputs, Tensor& out);

}  // namespace accelera::tensora
