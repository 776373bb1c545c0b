// Entries of softmax, and of normalization by the statistics of rows.
#include <algorithm>

#include "tensora/core/autograd.h"
#include "tensora/core/threads.h"
#include "tensora/functions.h"
#include "tensora/kernels/lines.h"
#include "tensora/kernels/rows.h"

namespace accelera::tensora {

namespace {

int64_t rows_at_once(int64_t n) { return std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)); }

// --- softmax: of the last axis ---------------------------------------------------------------------------

using SoftmaxLoop = void (*RowLoops::*)(const SoftmaxJob& job, int64_t begin, int64_t end);

template <SoftmaxLoop loop>
void softmax_kernel(Call& call) {
    const T x = contiguous(call.in[0]), y = call.in.size() > 1 ? contiguous(call.in[1]) : x;
    const int64_t n = x->shape().back();
    if (x->size() == 0) return;
    const SoftmaxJob job{n, x->bytes(), y->bytes(), call.out[0]->bytes()};
    const auto run_rows = row_loops(x->dtype()).*loop;
    parallel_for(x->size() / n, rows_at_once(n),
                 [&](int64_t begin, int64_t end) { run_rows(job, begin, end); });
}

void same_rule(Call& call) {
    for (const T& x : call.in)
        require(x->shape() == call.input().shape() && x->dtype() == call.input().dtype() && x->dims() > 0,
                call.op.name, ": tensors of shapes ", call.input().shape().words(), " and ",
                x->shape().words(), "; give one shape and type, with at least one axis");
    call.make(call.input().shape(), call.input().dtype());
}

T rows_sum(const T& x) { return sum(x, {-1}, true); }

const Op& softmax_backward_op =
    enter({.name = "softmax_backward",
           .family = Family::fused,
           .arity = 2,
           .types = floats,
           .rule = same_rule,
           .cpu = softmax_kernel<&RowLoops::softmax_backward>,
           .vjp =
               [](Backward& c) {
                   const T u = c.grad(), g = c.input(0), y = c.input(1);
                   c.give(0, [&] { return softmax_backward(u, y); });
                   c.give(1, [&] { return u * (g - rows_sum(g * y)) - g * rows_sum(u * y); });
               },
           .saves = in0 | in1,
           .flops_per_element = 4});
const Op& log_softmax_backward_op = enter({.name = "log_softmax_backward",
                                           .family = Family::fused,
                                           .arity = 2,
                                           .types = floats,
                                           .rule = same_rule,
                                           .cpu = softmax_kernel<&RowLoops::log_softmax_backward>,
                                           .vjp =
                                               [](Backward& c) {
                                                   const T u = c.grad(), p = exp(c.input(1));
                                                   c.give(0, [&] { return u - rows_sum(u * p); });
                                                   c.give(1, [&] { return -(rows_sum(c.input(0)) * u * p); });
                                               },
                                           .saves = in0 | in1,
                                           .flops_per_element = 14});
const Op& softmax_op =
    enter({.name = "softmax",
           .family = Family::fused,
           .arity = 1,
           .types = floats,
           .rule = same_rule,
           .cpu = softmax_kernel<&RowLoops::softmax>,
           .vjp = [](Backward& c) { c.give(0, [&] { return softmax_backward(c.grad(), c.output()); }); },
           .saves = out0,
           .flops_per_element = 14});
const Op& log_softmax_op =
    enter({.name = "log_softmax",
           .family = Family::fused,
           .arity = 1,
           .types = floats,
           .rule = same_rule,
           .cpu = softmax_kernel<&RowLoops::log_softmax>,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] { return run(log_softmax_backward_op, no_params, c.grad(), c.output()); });
               },
           .saves = out0,
           .flops_per_element = 14});

T along(const Op& op, const T& x, int64_t given) {
    if (x->dims() == 0) return reshape(run(op, no_params, reshape(x, {1})), {});
    const int axis = axis_of(given, x->dims(), op.name), last = x->dims() - 1;
    return axis == last ? run(op, no_params, x)
                        : transpose(run(op, no_params, transpose(x, axis, last)), axis, last);
}

// --- normalization: a: the last axes, which are normalized; x: eps; flag: centered ------------------------

DType computed(DType dtype) { return is(dtype, halves) ? DType::f32 : dtype; }
/// The weights as the loops read them.
T prepared(const T& weight, DType dtype) { return contiguous(cast(weight, computed(dtype))); }

Dims last_axes(const Params& params) {
    Dims axes;
    for (int i = params.a.size(); i > 0; --i) axes.push_back(-i);
    return axes;
}

Dims statistics_shape(const Dims& shape, const Dims& normalized) {
    Dims result = shape;
    for (int i = 0; i < normalized.size(); ++i) result[shape.size() - 1 - i] = 1;
    return result;
}

void check_normalized(const Call& call, const Tensor& x, size_t first_weight) {
    const Dims& wanted = call.params.a;
    const int skip = x.dims() - wanted.size();
    require(!wanted.empty() && skip >= 0 && Dims(x.shape().begin() + skip, wanted.size()) == wanted,
            call.op.name, ": a normalized shape of ", wanted.words(), " for a tensor of shape ",
            x.shape().words(), "; give the extents of its last axes");
    for (size_t i = first_weight; i < call.in.size(); ++i)
        require(call.in[i]->shape() == wanted, call.op.name, ": a weight or bias of shape ",
                call.in[i]->shape().words(), " for a normalized shape of ", wanted.words());
}

void layer_norm_rule(Call& call) {
    const Tensor& x = call.input();
    check_normalized(call, x, 1);
    call.make(x.shape(), x.dtype());
    const Dims statistics = statistics_shape(x.shape(), call.params.a);
    call.make(statistics, computed(x.dtype()), 1);
    call.make(statistics, computed(x.dtype()), 2);
}

void layer_norm_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    const int64_t n = call.params.a.product();
    if (x->size() == 0) return;
    const T weight = call.in.size() > 1 ? prepared(call.in[1], x->dtype()) : T();
    const T bias = call.in.size() > 2 ? prepared(call.in[2], x->dtype()) : T();
    const NormJob job{n,
                      x->bytes(),
                      weight ? weight->bytes() : nullptr,
                      bias ? bias->bytes() : nullptr,
                      call.params.x,
                      call.params.flag,
                      call.out[0]->bytes(),
                      call.out[1]->bytes(),
                      call.out[2]->bytes()};
    const auto run_rows = row_loops(x->dtype()).norm;
    parallel_for(x->size() / n, rows_at_once(n),
                 [&](int64_t begin, int64_t end) { run_rows(job, begin, end); });
}

void layer_norm_backward_rule(Call& call) {
    const Tensor& x = call.input(1);
    check_normalized(call, x, 4);
    const bool weighted = call.in.size() > 4;
    call.make(x.shape(), x.dtype());
    for (int i : {1, 2})
        call.make(weighted ? call.params.a : Dims{0}, weighted ? call.input(4).dtype() : x.dtype(), i);
}

/// The gradients of weight and bias are sums over rows: parts of them, whose number depends on nothing but
/// the shape, then their sum.
void layer_norm_backward_kernel(Call& call) {
    const T g = contiguous(call.in[0]), x = contiguous(call.in[1]);
    const T mean = contiguous(call.in[2]), rstd = contiguous(call.in[3]);
    const DType dtype = computed(x->dtype());
    const T weight = call.in.size() > 4 ? prepared(call.in[4], dtype) : T();
    const int64_t n = call.params.a.product(), rows = n ? x->size() / n : 0;
    const int64_t block = std::clamp<int64_t>(rows / 64, 8, 128), blocks = (rows + block - 1) / block;
    const int64_t size = size_of(dtype);
    const Scratch parts(weight ? blocks * 2 * n * size : 0);
    const RowLoops& loops = row_loops(x->dtype());
    parallel_for(blocks, std::max<int64_t>(1, rows_at_once(n) / block), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            char* const part = parts.as<char>() + i * 2 * n * size;
            loops.norm_backward(
                {n, g->bytes(), x->bytes(), mean->bytes(), rstd->bytes(), weight ? weight->bytes() : nullptr,
                 call.params.flag, call.out[0]->bytes(), part, part + n * size},
                i * block, std::min(rows, (i + 1) * block));
        }
    });
    if (!weight) return;
    for (int i : {1, 2}) {
        const T total = call.out[i]->dtype() == dtype ? call.out[i] : Tensor::empty(call.params.a, dtype);
        parallel_for(n, std::max<int64_t>(64, grain / std::max<int64_t>(blocks, 1)),
                     [&](int64_t begin, int64_t end) {
                         loops.add_parts(blocks, 2 * n, parts.as<char>() + (i - 1) * n * size, total->bytes(),
                                         begin, end);
                     });
        if (total != call.out[i]) copy_elements(*total, *call.out[i]);
    }
}

/// The part of a gradient that leaves mean and length of each row as they are, by the backward kernel.
std::array<T, 3> through_rows(Backward& c, const T& g, const T& x, const T& mean, const T& rstd) {
    static const Op& op = op_named("layer_norm_backward");
    return run_all(op, c.params(), g, x, mean, rstd);
}

void layer_norm_vjp(Backward& c) {
    static const Op& op = op_named("layer_norm_backward");
    const T g = c.grad(), x = c.input(0), mean = c.output(1), rstd = c.output(2);
    const std::array<T, 3> grads = c.inputs() > 1 ? run_all(op, c.params(), g, x, mean, rstd, c.input(1))
                                                  : through_rows(c, g, x, mean, rstd);
    c.give(0, [&] {
        T gx = grads[0];
        const double n = double(c.params().a.product());
        // Only of third and higher derivatives do the statistics have gradients of their own.
        if (c.has_grad(1) && c.params().flag) gx = gx + c.grad(1) / n;
        if (c.has_grad(2)) gx = gx - c.grad(2) * square(rstd) * rstd * (x - mean) / n;
        return gx;
    });
    for (int i = 1; i < c.inputs(); ++i) c.give(i, grads[size_t(i)]);
}

/// With N(q) = rstd (q - mean(q) - y mean(q y)), where y is the normalized input, the gradients are
/// gx = N(g weight), gw = sum of g y, gb = sum of g. N is symmetric, and y has the derivative N.
void layer_norm_backward_vjp(Backward& c) {
    const T g = c.input(0), x = c.input(1), mean = c.input(2), rstd = c.input(3);
    const bool weighted = c.inputs() > 4;
    const Dims axes = last_axes(c.params());
    const double n = double(c.params().a.product());
    const auto mean_of = [&](const T& q) { return sum(q, axes, true) / n; };
    const T y = (x - mean) * rstd, u = c.grad(0), h = weighted ? g * c.input(4) : g;
    const T nu = through_rows(c, u, x, mean, rstd)[0];
    c.give(0, [&] {
        if (!weighted) return nu;
        return nu * c.input(4) + c.grad(1) * y + c.grad(2);
    });
    c.give(1, [&] {
        T q = -(rstd * (u * mean_of(h * y) + h * mean_of(u * y)));
        if (weighted) q = q + g * c.grad(1);
        return through_rows(c, q, x, mean, rstd)[0] - rstd * mean_of(nu * h) * y;
    });
    if (weighted) c.give(4, [&] { return g * nu; });
}

const Op& layer_norm_backward_op = enter({.name = "layer_norm_backward",
                                          .family = Family::fused,
                                          .arity = -1,
                                          .outputs = 3,
                                          .types = floats,
                                          .rule = layer_norm_backward_rule,
                                          .cpu = layer_norm_backward_kernel,
                                          .vjp = layer_norm_backward_vjp,
                                          .saves = in0 | in1 | in2 | in3 | in4,
                                          .flops_per_element = 14});
const Op& layer_norm_op = enter({.name = "layer_norm",
                                 .family = Family::fused,
                                 .arity = -1,
                                 .outputs = 3,
                                 .types = floats,
                                 .rule = layer_norm_rule,
                                 .cpu = layer_norm_kernel,
                                 .vjp = layer_norm_vjp,
                                 .saves = in0 | in1 | out1 | out2,
                                 .flops_per_element = 9});

}  // namespace

T softmax(const T& x, int axis) { return along(softmax_op, x, axis); }
T log_softmax(const T& x, int axis) { return along(log_softmax_op, x, axis); }
T softmax_backward(const T& g, const T& y) { return run(softmax_backward_op, no_params, g, y); }

T layer_norm(const T& x, const Dims& normalized, const T& weight, const T& bias, double eps, bool centered) {
    Params params;
    params.a = normalized;
    params.x = eps;
    params.flag = centered;
    if (!weight) {
        const T result = run(layer_norm_op, params, x);
        return bias ? result + bias : result;
    }
    return bias ? run(layer_norm_op, params, x, weight, bias) : run(layer_norm_op, params, x, weight);
}

}  // namespace accelera::tensora
