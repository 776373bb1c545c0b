#pragma once

#include <array>
#include <optional>
#include <vector>

#include "tensora/core/basic_functions.h"

/// Operations as C++ functions, in which vjps and composed operations are written.
namespace accelera::tensora {

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
/// The same with products, or with the smallest or the largest, the tensor's own element among them.
T scatter_reduce(const T& x, const T& index, const T& values, int axis, Scattered kind);

// --- indexing and assignment

/// One part of an index, after Python's notation was read.
struct Subscript {
    enum class Kind : uint8_t { number, range, new_axis, tensor } kind;
    int64_t start = 0;  ///< the number, or the first element of a range
    int64_t step = 1;
    int64_t size = 0;
    T tensor;  ///< of int64, in range; a bool mask was replaced by the places of its true elements
};

/// x[subscripts], one for each axis of `x` besides new ones: a view where no tensor is among them.
T subscripted(const T& x, const std::vector<Subscript>& subscripts);
/// x[subscripts] = value
void assign(const T& x, const std::vector<Subscript>& subscripts, const T& value);

/// Elements of `target` become op(inputs) or `value`; raises where gradients would be lost, or types do not
/// fit.
void apply_in_place(const Op& op, std::span<const T> inputs, const T& target);
void write_in_place(const T& target, const T& value, const char* op);

/// Indices of the elements that are not zero: one int64 tensor for each axis.
std::vector<T> nonzero(const T& x);
/// The index counted from the front, for an axis of this extent; raises when one is out of range. If a graph
/// records one of `readers`, the result is a copy: the backward pass needs the places of the forward pass.
T checked_index(const T& index, int64_t extent, const char* op, std::initializer_list<T> readers);
/// Copy of an int64 index if a graph records one of `readers`, otherwise the index.
T recorded_index(const T& index, std::initializer_list<T> readers);

// --- sorting and searching

/// Indices that sort `x` along an axis, equal elements in their order and NaN last; the first `kept` of them.
T argsort(const T& x, int axis, bool descending, std::optional<int64_t> kept);
/// Index of the first largest or smallest element along an axis; of the first NaN where there is one.
T argmax(const T& x, int axis, bool keep);
T argmin(const T& x, int axis, bool keep);
/// Index of the last largest or smallest element up to each one along an axis; of NaN from the first one on.
T running_extreme(const T& x, int axis, bool largest);
/// Where each value would have to stand in a sorted vector; behind equal elements if `right`.
T searchsorted(const T& sorted, const T& values, bool right);

struct Unique {
    T values;   ///< sorted; each NaN is one of its own
    T indices;  ///< of the first element of each value, in the flattened tensor
    T inverse;  ///< for each element the place of its value
    T counts;
};
Unique unique(const T& x);

// --- linear algebra: the last two axes are rows and columns of float32, float64, complex64 or complex128

/// Lower triangle L with L Lᴴ = x; only the lower triangle of x is read.
T cholesky(const T& x);
/// The matrix X with a X = b, for square `a`; batches are broadcast.
T solve(const T& a, const T& b);
/// The same for a triangular `a`, of which only that triangle is read.
T solve_triangular(const T& a, const T& b, bool upper);
T inv(const T& x);
T det(const T& x);
/// Sign (of modulus 1, or 0) and logarithm of the modulus of the determinant.
std::array<T, 3> slogdet(const T& x);
/// Q and R; with `complete` Q is square.
std::array<T, 3> qr(const T& x, bool complete);
/// U, singular values (descending) and Vᴴ; with `full` U and V are square.
std::array<T, 3> svd(const T& x, bool full);
T svdvals(const T& x);
/// Eigenvalues (ascending) and eigenvectors of a Hermitian matrix, of which the lower triangle is read.
std::array<T, 3> eigh(const T& x);
T eigvalsh(const T& x);
/// Eigenvalues and eigenvectors of any square matrix; both are complex.
std::array<T, 3> eig(const T& x);
/// Both triangles in one matrix, the pivots as LAPACK counts them, and the permutation P with x = P L U.
std::array<T, 3> lu_factor(const T& x);

/// Elements with column - row <= diagonal, zeros elsewhere; and those with column - row >= diagonal.
T lower_triangle(const T& x, int64_t diagonal);
T upper_triangle(const T& x, int64_t diagonal);

// --- windows that go over images (images, channels, extents...) and sequences

/// How windows lie over the extents of an image, one number for each.
struct Windows {
    Dims stride, padding, dilation;
};
/// Convolution with a weight (output channels, input channels / groups, extents...); `bias` may be null.
T conv(const T& x, const T& weight, const T& bias, const Windows& windows, int64_t groups);
/// Its gradients for an output `y`: an input of these extents, and a weight of these.
T conv_input(const T& y, const T& weight, const Windows& windows, int64_t groups, const Dims& extents);
T conv_weight(const T& x, const T& y, const Windows& windows, int64_t groups, const Dims& extents);

/// Largest element of each window, and its place in the channel. With `ceil` the last window may reach over
/// the end.
std::array<T, 3> max_pool(const T& x, const Dims& kernel, const Windows& windows, bool ceil);
/// Mean of each window; sums are divided by `divisor` where it is not 0.
T avg_pool(const T& x, const Dims& kernel, const Windows& windows, bool ceil, bool count_padding,
           double divisor);
/// The same for windows that share the image evenly, so that these extents result.
std::array<T, 3> adaptive_max_pool(const T& x, const Dims& outs);
T adaptive_avg_pool(const T& x, const Dims& outs);
/// Windows over two extents as columns, (images, channels * window, windows), and their sum where they came
/// from.
T unfold(const T& x, const Dims& kernel, const Windows& windows);
T fold(const T& y, const Dims& outs, const Dims& kernel, const Windows& windows);

/// Attention softmax(query keyᵀ scale + mask) value of tensors (batch, heads, length, width): the result, and
/// for each query the logarithm of the sum of its e^score. `mask` may be null.
std::array<T, 3> attention(const T& query, const T& key, const T& value, const T& mask, double scale,
                           bool causal);
/// Gradients of query, key and value, from these, the result's gradient, the result and its logarithms.
std::array<T, 3> attention_backward(const std::vector<T>& inputs, const T& mask, double scale, bool causal);

// --- neural networks

T softmax(const T& x, int axis);
T log_softmax(const T& x, int axis);
/// y (g - sum(g y)) along the last axis: gradient of a softmax whose result is y.
T softmax_backward(const T& g, const T& y);
/// Normalization over the last axes, whose extents are `normalized`; not `centered`: by the root of the mean
/// square. Weight and bias may be null.
T layer_norm(const T& x, const Dims& normalized, const T& weight, const T& bias, double eps, bool centered);
/// [N, C, ...] normalized in groups of channels of each sample, or each channel over the batch for 0 groups;
/// with means and 1 / standard deviations.
std::array<T, 3> channel_norm(const T& x, int64_t groups, const T& weight, const T& bias, double eps);
/// x weightᵀ + bias, which may be null.
T linear(const T& x, const T& weight, const T& bias);
/// Of each row of [rows, classes] logits: loss, log-sum-exp, and weight of its target (0 if it is ignored).
std::array<T, 3> cross_entropy(const T& x, const T& target, const T& weight, int64_t ignored,
                               double smoothing);

struct SgdStep;
struct AdamStep;
/// Moving averages of gradients and of their squares; the largest of the latter are for AMSGrad alone.
struct AdamStates {
    std::vector<T> means, squares, largest;
};
/// Write the next step into the parameters and states; `buffers` are empty without momentum.
void sgd_step(const std::vector<T>& params, const std::vector<T>& grads, const std::vector<T>& buffers,
              const SgdStep& options);
void adam_step(const std::vector<T>& params, const std::vector<T>& grads, const AdamStates& states,
               const AdamStep& options);
/// Write gradients times a factor of float32 in their place; whether all of them were finite.
bool unscale(const std::vector<T>& grads, double factor);

// --- random numbers: element i of a draw depends on the seed, the number of the draw and i alone, so that
// any number of threads makes the same

/// Philox4x32-10: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A generator's place: its seed, and how many draws it has made.
struct Draw {
    uint64_t seed = 0;
    uint64_t number = 0;
};

/// Evenly distributed in [low, high).
T random_uniform(const Draw& draw, const Dims& shape, DType dtype, double low, double high);
T random_normal(const Draw& draw, const Dims& shape, DType dtype, double mean, double deviation);
/// Integers in [low, low + extent), all equally likely; an extent of 0 stands for 2⁶⁴.
T random_integers(const Draw& draw, const Dims& shape, DType dtype, int64_t low, uint64_t extent);
/// `x` with elements set to zero with probability `p`, and the others divided by 1 - p.
T random_dropout(const Draw& draw, const T& x, double p);
/// The numbers below n in any order.
T random_permutation(const Draw& draw, int64_t n);

// --- parts of matrices in terms of operations, in which gradients are written

inline T diagonal_mask(int64_t n) {
    return logical_and(lower_mask(n, n, 0), logical_not(lower_mask(n, n, -1)));
}

inline T adjoint(const T& x) { return is(x->dtype(), complexes) ? conj(mt(x)) : mt(x); }
inline T conjugate(const T& x) { return is(x->dtype(), complexes) ? conj(x) : x; }
inline T hermitian(const T& x) { return (x + adjoint(x)) * 0.5; }
inline T skew(const T& x) { return x - adjoint(x); }

/// Matrix with these elements on its diagonal.
inline T diagonal_matrix(const T& x) {
    return where(diagonal_mask(x->shape().back()), unsqueeze(x, -1), like(x, 0));
}
/// Zero but for the diagonal.
inline T diagonal_part(const T& x) { return where(diagonal_mask(x->shape().back()), x, like(x, 0)); }
inline T as_column(const T& x) { return unsqueeze(x, -1); }
inline T as_row(const T& x) { return unsqueeze(x, -2); }
/// A number for each matrix, to be multiplied with its elements.
inline T for_matrices(const T& x) { return as_column(as_column(x)); }

/// x[j] - x[i] at (i, j), and 1 on the diagonal.
inline T gaps(const T& x) {
    const T one = like(x, 1);
    return where(diagonal_mask(x->shape().back()), one, as_row(x) - as_column(x));
}

inline T narrowed(const T& x, int axis, int64_t start, int64_t size) {
    return narrow(x, axis_of(axis, x->dims(), "narrow"), start, size);
}

}  // namespace accelera::tensora
