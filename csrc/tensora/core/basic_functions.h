#pragma once

#include <span>
#include <vector>

#include "tensora/core/lines.h"
#include "tensora/core/op.h"

/// Operations as C++ functions that core, kernels for CUDA and captured functions are written with. The
/// op table, which ops/ fills, has their kernels; those that are only declared here are defined in ops/.
namespace accelera::tensora {

#define TENSORA_UNARY(name)                    \
    inline T name(const T& x) {                \
        static const Op& op = op_named(#name); \
        return run(op, no_params, x);          \
    }
#define TENSORA_BINARY(name)                   \
    inline T name(const T& a, const T& b) {    \
        static const Op& op = op_named(#name); \
        return run(op, no_params, a, b);       \
    }

TENSORA_UNARY(negative)
TENSORA_UNARY(exp)
TENSORA_UNARY(log)
TENSORA_UNARY(log1p)
TENSORA_UNARY(sqrt)
TENSORA_UNARY(tanh)
TENSORA_UNARY(sin)
TENSORA_UNARY(cos)
TENSORA_UNARY(sinh)
TENSORA_UNARY(cosh)
TENSORA_UNARY(abs)
TENSORA_UNARY(sign)
TENSORA_UNARY(square)
TENSORA_UNARY(reciprocal)
TENSORA_UNARY(conj)
TENSORA_UNARY(real)
TENSORA_UNARY(imag)
TENSORA_UNARY(sigmoid)
TENSORA_UNARY(digamma)
TENSORA_UNARY(logical_not)
TENSORA_UNARY(isnan)
TENSORA_BINARY(add)
TENSORA_BINARY(subtract)
TENSORA_BINARY(multiply)
TENSORA_BINARY(divide)
TENSORA_BINARY(pow)
TENSORA_BINARY(logaddexp)
TENSORA_BINARY(equal)
TENSORA_BINARY(less)
TENSORA_BINARY(greater)
TENSORA_BINARY(greater_equal)
TENSORA_BINARY(less_equal)
TENSORA_BINARY(logical_and)
TENSORA_BINARY(logical_or)
TENSORA_BINARY(maximum)
TENSORA_BINARY(complex)
#undef TENSORA_UNARY
#undef TENSORA_BINARY

inline T where(const T& condition, const T& a, const T& b) {
    static const Op& op = op_named("where");
    return run(op, no_params, condition, a, b);
}

/// A number as a 0-d tensor of another one's type.
inline T like(const T& tensor, double value) { return Tensor::scalar(tensor->dtype(), value); }

inline T operator-(const T& x) { return negative(x); }
inline T operator+(const T& a, const T& b) { return add(a, b); }
inline T operator-(const T& a, const T& b) { return subtract(a, b); }
inline T operator*(const T& a, const T& b) { return multiply(a, b); }
inline T operator/(const T& a, const T& b) { return divide(a, b); }
inline T operator+(const T& a, double b) { return add(a, like(a, b)); }
inline T operator-(const T& a, double b) { return subtract(a, like(a, b)); }
inline T operator*(const T& a, double b) { return multiply(a, like(a, b)); }
inline T operator/(const T& a, double b) { return divide(a, like(a, b)); }
inline T operator+(double a, const T& b) { return add(like(b, a), b); }
inline T operator-(double a, const T& b) { return subtract(like(b, a), b); }
inline T operator*(double a, const T& b) { return multiply(like(b, a), b); }
inline T operator/(double a, const T& b) { return divide(like(b, a), b); }

T zeros(const Dims& shape, DType dtype);
T ones(const Dims& shape, DType dtype);
/// The tensor itself where it has this type.
T cast(const T& x, DType dtype);
/// Contiguous copy.
T copy(const T& x);
/// The tensor itself where it is contiguous.
T contiguous(const T& x);
/// The tensor itself if it is on this device, otherwise a copy there.
T to_device(const T& x, Device device);

T reshape(const T& x, const Dims& shape);
T expand(const T& x, const Dims& shape);
T permute(const T& x, const Dims& order);
T transpose(const T& x, int a, int b);
/// The last two axes exchanged.
T mt(const T& x);
T unsqueeze(const T& x, int axis);
T squeeze(const T& x, int axis);
/// Elements from `start`, every `step`-th, `size` of them on each axis.
T slice(const T& x, const Dims& start, const Dims& step, const Dims& size);
T narrow(const T& x, int axis, int64_t start, int64_t size);
/// Zeros of `shape` with `x` where `slice` would take it.
T unslice(const T& x, const Dims& shape, const Dims& start, const Dims& step);
T flip(const T& x, const Dims& axes);
T concat(const std::vector<T>& parts, int axis);
/// View with any layout over a contiguous tensor, and the scattering that is its gradient.
T as_strided(const T& x, const Layout& layout);
T strided_scatter(const T& x, const Dims& shape, const Layout& layout);
bool has_nan(const T& x);

/// Product of matrices, batches of them, or vectors, as Python's @.
T matmul(const T& a, const T& b);

T sum(const T& x, const Dims& axes, bool keep);
/// Sum over the axes along which a tensor of `shape` was broadcast.
T sum_to(const T& x, const Dims& shape);
T max(const T& x, const Dims& axes, bool keep);

/// Places with column - row <= diagonal.
inline T lower_mask(int64_t rows, int64_t columns, int64_t diagonal) {
    const DeviceScope scope(cpu);
    const T mask = Tensor::empty({rows, columns}, DType::bool_);
    if (mask->storage()->lacks_contents()) return mask;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) mask->data<bool>()[i * columns + j] = j - i <= diagonal;
    return mask;
}

/// Reductions of `scatter_reduce`.
enum class Scattered : uint8_t { prod, min, max };

// --- elementwise operations

/// Rule and kernel of all entries whose loops come from kernels/formulas.def: inputs are promoted to one type
/// and broadcast to one shape.
void elementwise_rule(Call& call);
void elementwise_kernel(Call& call);
void elementwise_cuda(Call& call);
/// Type that the loops of a call from that file compute in.
DType loop_type(const Call& call);

/// Type of integers and bools where an operation is only defined for inexact numbers.
DType default_float();
void set_default_float(DType dtype);

/// `out` = op(inputs), written over `out`'s elements; for operations in place whose result is not recorded.
bool write_elementwise(const Op& op, std::span<const T> inputs, Tensor& out);

}  // namespace accelera::tensora
