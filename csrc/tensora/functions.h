#pragma once

#include "tensora/core/op.h"

/// Operations as C++ functions, in which vjps and composed operations are written.
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
TENSORA_BINARY(equal)
TENSORA_BINARY(less)
TENSORA_BINARY(greater)
TENSORA_BINARY(greater_equal)
TENSORA_BINARY(less_equal)
TENSORA_BINARY(logical_and)
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
T cumsum(const T& x, int axis);

/// x[..., index, ...] along one axis, for an index tensor of any shape.
T take(const T& x, const T& index, int axis);
/// Zeros of `shape` to which the values are added where `take` would take them from.
T take_add(const T& values, const T& index, const Dims& shape, int axis);
/// The tensor with the values at the places that `take` would take from.
T put(const T& x, const T& index, const T& values, int axis);
/// out[index[i, j], j] += x[i, j] for axis 0, and so on; `index` has the shape of `x`.
T take_along(const T& x, const T& index, int axis);
T scatter_add(const T& x, const T& index, const T& values, int axis);

}  // namespace accelera::tensora
