// Entry of the product of matrices.
#include <cstring>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"
#include "tensora/ops/lapack.h"

namespace accelera::tensora {

namespace {

void matmul_rule(Call& call) {
    const Dims &a = call.input(0).shape(), &b = call.input(1).shape();
    require_shape(a.back() == b[b.size() - 2], "[matmul] shapes ", a, " and ", b, " do not match: ", a.back(),
                  " columns and ", b[b.size() - 2], " rows");
    Dims shape = broadcast(batch_of(a), batch_of(b), "matmul");
    shape.push_back(a[a.size() - 2]);
    shape.push_back(b.back());
    call.make(shape, promote(call.input(0).dtype(), call.input(1).dtype()));
}

MatrixView matrix(const Tensor& x, int64_t offset) {
    const int n = x.dims();
    return {x.bytes() + offset * size_of(x.dtype()), x.shape()[n - 2], x.shape()[n - 1], x.strides()[n - 2],
            x.strides()[n - 1]};
}

/// The tensor in a type that gemm computes in, its matrices by rows or by columns.
T prepared(const T& x, DType dtype) {
    const T converted = cast(x, dtype);
    const MatrixView view = matrix(*converted, 0);
    return view.by_rows() || view.by_columns() ? converted : copy(converted);
}

template <typename E>
void multiply_integers(const MatrixView& a, const MatrixView& b, E* c) {
    std::fill_n(c, a.rows * b.columns, E(0));
    for (int64_t i = 0; i < a.rows; ++i)
        for (int64_t k = 0; k < a.columns; ++k) {
            const E factor = static_cast<const E*>(a.data)[i * a.row_step + k * a.column_step];
            const E* const row = static_cast<const E*>(b.data) + k * b.row_step;
            for (int64_t j = 0; j < b.columns; ++j) {
                if constexpr (std::is_same_v<E, Bool>)
                    c[i * b.columns + j] = c[i * b.columns + j] || (factor && row[j * b.column_step]);
                else
                    c[i * b.columns + j] = E(c[i * b.columns + j] + factor * row[j * b.column_step]);
            }
        }
}

/// Offset of the i-th matrix of a batch of this shape.
int64_t batch_offset(const Tensor& x, const Dims& batch, int64_t i) {
    int64_t offset = 0;
    const int own = x.dims() - 2;
    for (int axis = batch.size() - 1; axis >= 0; --axis) {
        const int64_t digit = i % batch[axis];
        i /= batch[axis];
        const int at = axis - (batch.size() - own);
        if (at >= 0 && x.shape()[at] != 1) offset += digit * x.strides()[at];
    }
    return offset;
}

/// Many small products go side by side, large ones one after another on all threads.
bool go_side_by_side(int64_t n, int64_t work) {
    return n >= int64_t(2) * thread_count() && work < (int64_t(1) << 21);
}

/// Whether rows of a product of this many matrices are told of while they are in the cache.
bool product_by_rows(const Call& call, int64_t n, int64_t rows, int64_t inner) {
    const auto& [shape, dtype] = call.made[0];
    const bool computed_there = is(dtype, inexact) && !is(dtype, halves);
    if (!computed_there || shape.product() == 0 || inner == 0) return false;
    constexpr int64_t least_told = 4096;  // elements for which telling of them costs nothing
    const int64_t columns = shape.back(), each = rows * columns;
    return go_side_by_side(n, each * inner) ? each >= least_told
                                            : panel_rows(dtype, rows, inner, columns) > 0;
}

bool matmul_by_rows(const Call& call) {
    const Dims& shape = call.made[0].shape;
    return product_by_rows(call, batch_of(shape).product(), shape[shape.size() - 2],
                           call.input(0).shape().back());
}

void matmul_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const DType dtype = is(out.dtype(), halves) ? DType::f32 : out.dtype();
    const T a = prepared(call.in[0], dtype), b = prepared(call.in[1], dtype);
    const T result = dtype == out.dtype() ? call.out[0] : Tensor::empty(out.shape(), dtype);
    const Dims batch = batch_of(out.shape());
    const int64_t rows = result->shape()[result->dims() - 2], each = result->shape().back() * rows;
    const int64_t n = batch.product(), inner = a->shape().back();
    if (out.size() == 0) return;
    if (inner == 0) {
        fill_zeros(out);
        return;
    }
    const auto multiply_range = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const MatrixView x = matrix(*a, batch_offset(*a, batch, i)),
                             y = matrix(*b, batch_offset(*b, batch, i));
            void* const to = result->bytes() + i * each * size_of(dtype);
            if (is(dtype, inexact))
                gemm(dtype, x, y, to, {nullptr, call.rows_done, i * rows});
            else
                visit(dtype, [&]<typename E>(Tag<E>) {
                    if constexpr (std::is_integral_v<Computed<E>>)
                        multiply_integers(x, y, static_cast<E*>(to));
                });
        }
    };
    const int64_t work = each * inner;
    if (go_side_by_side(n, work)) {
        const BlasOnOneThread one_thread;
        parallel_for(n, std::max<int64_t>(1, grain * 8 / std::max<int64_t>(work, 1)), multiply_range);
    } else {
        multiply_range(0, n);
    }
    if (dtype != out.dtype()) copy_elements(*result, out);
}

Cost product_cost(const Call& call) {
    const double inner = double(call.input(0).shape().back());
    const double out = double(call.made[0].shape.product());
    double bytes = out * double(size_of(call.made[0].dtype));
    for (const T& x : call.in) bytes += double(x->size() * size_of(x->dtype()));
    return {2 * out * inner, bytes};
}

const Op& matmul_op = enter({.name = "matmul",
                             .family = Family::contraction,
                             .arity = 2,
                             .types = any_type,
                             .rule = matmul_rule,
                             .cpu = matmul_kernel,
                             .cuda = cuda::matmul,
                             .by_rows = matmul_by_rows,
                             .vjp =
                                 [](Backward& c) {
                                     const T g = c.grad();
                                     c.give(0, [&] { return matmul(g, adjoint(c.input(1))); });
                                     c.give(1, [&] { return matmul(adjoint(c.input(0)), g); });
                                 },
                             .saves = in0 | in1,
                             .autocast = Precision::lower,
                             .cost = product_cost});

// --- linear: x [..., in], weight [out, in], bias [out] ----------------------------------------------------

void linear_rule(Call& call) {
    const Tensor &x = call.input(0), &weight = call.input(1);
    require_shape(weight.dims() == 2 && x.dims() > 0 && x.shape().back() == weight.shape()[1],
                  "[linear] a weight of shape ", weight.shape().words(), " for an input of shape ",
                  x.shape().words(), "; give (out_features, in_features) and (..., in_features)");
    DType dtype = promote(x.dtype(), weight.dtype());
    if (call.in.size() > 2) {
        require_shape(call.input(2).shape() == Dims{weight.shape()[0]}, "[linear] a bias of shape ",
                      call.input(2).shape().words(), " for ", weight.shape()[0], " output features");
        dtype = promote(dtype, call.input(2).dtype());
    }
    Dims shape(x.shape().begin(), x.dims() - 1);
    shape.push_back(weight.shape()[0]);
    call.make(shape, dtype);
}

bool linear_by_rows(const Call& call) {
    const Dims& shape = call.made[0].shape;
    if (shape.back() == 0) return false;
    return product_by_rows(call, 1, shape.product() / shape.back(), call.input(1).shape()[1]);
}

void linear_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const DType dtype = is(out.dtype(), halves) ? DType::f32 : out.dtype();
    const T x = contiguous(cast(call.in[0], dtype)), weight = prepared(call.in[1], dtype);
    const T bias = call.in.size() > 2 ? contiguous(cast(call.in[2], dtype)) : T();
    if (out.size() == 0) return;
    const int64_t inner = weight->shape()[1], rows = out.size() / weight->shape()[0];
    const T result = dtype == out.dtype() ? call.out[0] : Tensor::empty(out.shape(), dtype);
    if (inner > 0) {
        const MatrixView w = matrix(*weight, 0);
        gemm(dtype, {x->bytes(), rows, inner, inner, 1},
             {w.data, w.columns, w.rows, w.column_step, w.row_step}, result->bytes(),
             {bias ? bias->bytes() : nullptr, call.rows_done});
    } else if (bias) {
        copy_elements(*expand(bias, out.shape()), *result);
    } else {
        fill_zeros(*result);
    }
    if (dtype != out.dtype()) copy_elements(*result, out);
}

void linear_vjp(Backward& c) {
    const T g = reshape(c.grad(), {-1, c.output_shape().back()});
    c.give(0, [&] { return reshape(matmul(g, conjugate(c.input(1))), c.shape(0)); });
    c.give(1, [&] { return matmul(mt(g), conjugate(reshape(c.input(0), {-1, c.shape(0).back()}))); });
    if (c.inputs() > 2) c.give(2, [&] { return sum(g, {0}, false); });
}

const Op& linear_op = enter({.name = "linear",
                             .family = Family::contraction,
                             .arity = -1,
                             .types = inexact,
                             .rule = linear_rule,
                             .cpu = linear_kernel,
                             .cuda = cuda::linear,
                             .by_rows = linear_by_rows,
                             .vjp = linear_vjp,
                             .saves = in0 | in1,
                             .autocast = Precision::lower,
                             .cost = product_cost});

}  // namespace

T linear(const T& x, const T& weight, const T& bias) {
    return bias ? run(linear_op, no_params, x, weight, bias) : run(linear_op, no_params, x, weight);
}

T matmul(const T& a, const T& b) {
    require(a->dims() > 0 && b->dims() > 0, "[matmul] a 0-d tensor; multiply it with *");
    const T x = a->dims() == 1 ? unsqueeze(a, 0) : a;
    const T y = b->dims() == 1 ? unsqueeze(b, -1) : b;
    T result = run(matmul_op, no_params, x, y);
    if (a->dims() == 1) result = squeeze(result, -2);
    if (b->dims() == 1) result = squeeze(result, -1);
    return result;
}

}  // namespace accelera::tensora
