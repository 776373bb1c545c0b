// Entries of normalization by the statistics of rows, groups or channels.
#include <algorithm>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

int64_t rows_at_once(int64_t n) { return std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)); }

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
    require_shape(!wanted.empty() && skip >= 0 && Dims(x.shape().begin() + skip, wanted.size()) == wanted,
                  "[", call.op.name, "] a normalized shape of ", wanted.words(), " for a tensor of shape ",
                  x.shape().words(), "; give the extents of its last axes");
    for (size_t i = first_weight; i < call.in.size(); ++i)
        require_shape(call.in[i]->shape() == wanted, "[", call.op.name, "] a weight or bias of shape ",
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
                                          .cuda = cuda::layer_norm_backward,
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
                                 .cuda = cuda::layer_norm,
                                 .vjp = layer_norm_vjp,
                                 .saves = in0 | in1 | out1 | out2,
                                 .autocast = Precision::single,
                                 .flops_per_element = 9});

// --- normalization of channels: x [N, C, ...]; b: groups, or 0 for the channels over the batch; x: eps
// -------

/// Extents of x as samples, channels and elements of a channel, and what of them is a row.
struct Channels {
    int64_t samples, channels, n, groups;

    Channels(const Params& params, const Dims& shape)
        : samples(shape[0]),
          channels(shape[1]),
          n(channels && samples ? shape.product() / (samples * channels) : 0),
          groups(params.b[0]) {}
    int64_t rows() const { return groups ? samples * groups : channels; }
    int64_t segments() const { return groups ? channels / groups : samples; }
    int64_t step() const { return groups ? n : channels * n; }
    int64_t row_step() const { return groups ? segments() * n : n; }

    /// As [rows, segments, n], and back.
    T rows_of(const T& x) const {
        if (groups) return reshape(x, {rows(), segments(), n});
        return permute(reshape(x, {samples, channels, n}), {1, 0, 2});
    }
    T back(const T& x, const Dims& shape) const { return reshape(groups ? x : permute(x, {1, 0, 2}), shape); }
    /// Numbers of the channels, to be multiplied with rows.
    T spread(const T& weight) const {
        if (!groups) return reshape(weight, {channels, 1, 1});
        return reshape(expand(reshape(weight, {1, groups, segments()}), {samples, groups, segments()}),
                       {rows(), segments(), 1});
    }
};

ChannelNormJob channel_job(const Call& call, const T& x, const T& weight, const T& bias) {
    const Channels c(call.params, x->shape());
    return {c.n,
            c.segments(),
            c.row_step(),
            c.step(),
            c.groups,
            x->bytes(),
            weight ? weight->bytes() : nullptr,
            bias ? bias->bytes() : nullptr,
            call.params.x,
            nullptr,
            nullptr,
            call.out[0]->bytes()};
}

void check_channels(const Call& call, const Tensor& x, size_t first_weight) {
    const int64_t groups = call.params.b[0];
    require_shape(x.dims() >= 2 && groups >= 0 && (groups == 0 || x.shape()[1] % groups == 0), "[",
                  call.op.name, "] ", groups, " groups for a tensor of shape ", x.shape().words(),
                  "; give (N, C, ...) and a divisor of C");
    for (size_t i = first_weight; i < call.in.size(); ++i)
        require_shape(call.in[i]->shape() == Dims{x.shape()[1]}, "[", call.op.name,
                      "] a weight or bias of shape ", call.in[i]->shape().words(), " for ", x.shape()[1],
                      " channels");
}

void channel_norm_rule(Call& call) {
    const Tensor& x = call.input();
    check_channels(call, x, 1);
    call.make(x.shape(), x.dtype());
    for (int i : {1, 2}) call.make({Channels(call.params, x.shape()).rows()}, computed(x.dtype()), i);
}

void channel_norm_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    if (x->size() == 0) return;
    const T weight = call.in.size() > 1 ? prepared(call.in[1], x->dtype()) : T();
    const T bias = call.in.size() > 2 ? prepared(call.in[2], x->dtype()) : T();
    ChannelNormJob job = channel_job(call, x, weight, bias);
    job.mean = call.out[1]->bytes();
    job.rstd = call.out[2]->bytes();
    const auto run_rows = row_loops(x->dtype()).channel_norm;
    parallel_for(call.out[1]->size(), rows_at_once(job.n * job.segments),
                 [&](int64_t begin, int64_t end) { run_rows(job, begin, end); });
}

void channel_norm_backward_rule(Call& call) {
    const Tensor& x = call.input(1);
    check_channels(call, x, 4);
    call.make(x.shape(), x.dtype());
    const DType dtype = call.in.size() > 4 ? call.input(4).dtype() : x.dtype();
    for (int i : {1, 2}) call.make({x.shape()[1]}, dtype, i);
}

/// Sums of all segments of each channel: the gradients of weight and bias.
void add_segments(const ChannelNormJob& job, int64_t rows, const Call& call) {
    std::vector<double> gw(size_t(call.out[1]->size())), gb(gw.size());
    for (int64_t k = 0; k < rows; ++k)
        for (int64_t i = 0; i < job.segments; ++i) {
            const double* const sums = job.sums + 2 * (k * job.segments + i);
            gb[size_t(job.channel(k, i))] += sums[0];
            gw[size_t(job.channel(k, i))] += sums[1];
        }
    visit(call.out[1]->dtype(), [&]<typename E>(Tag<E>) {
        for (size_t i = 0; i < gw.size(); ++i) {
            call.out[1]->data<E>()[i] = cast_value<E>(gw[i]);
            call.out[2]->data<E>()[i] = cast_value<E>(gb[i]);
        }
    });
}

void channel_norm_backward_kernel(Call& call) {
    const T g = contiguous(call.in[0]), x = contiguous(call.in[1]);
    const T mean = contiguous(call.in[2]), rstd = contiguous(call.in[3]);
    const T weight = call.in.size() > 4 ? prepared(call.in[4], x->dtype()) : T();
    ChannelNormJob job = channel_job(call, x, weight, T());
    const int64_t rows = x->size() ? mean->size() : 0;
    const Scratch sums(rows * job.segments * 2 * int64_t(sizeof(double)));
    job.g = g->bytes();
    job.mean = mean->bytes();
    job.rstd = rstd->bytes();
    job.sums = sums.as<double>();
    const auto run_rows = row_loops(x->dtype()).channel_norm_backward;
    parallel_for(rows, rows_at_once(job.n * job.segments),
                 [&](int64_t begin, int64_t end) { run_rows(job, begin, end); });
    add_segments(job, rows, call);
}

std::array<T, 3> through_channels(Backward& c, const T& g, const T& x, const T& mean, const T& rstd) {
    static const Op& op = op_named("channel_norm_backward");
    return run_all(op, c.params(), g, x, mean, rstd);
}

void channel_norm_vjp(Backward& c) {
    static const Op& op = op_named("channel_norm_backward");
    const T g = c.grad(), x = c.input(0), mean = c.output(1), rstd = c.output(2);
    const std::array<T, 3> grads = c.inputs() > 1 ? run_all(op, c.params(), g, x, mean, rstd, c.input(1))
                                                  : through_channels(c, g, x, mean, rstd);
    c.give(0, [&] {
        if (!c.has_grad(1) && !c.has_grad(2)) return grads[0];
        const Channels rows(c.params(), c.shape(0));
        const double n = double(rows.n * rows.segments());
        const T r = reshape(rstd, {-1, 1, 1}), m = reshape(mean, {-1, 1, 1});
        const T distance = rows.rows_of(x) - m;
        const T more = reshape(c.grad(1), {-1, 1, 1}) / n -
                       reshape(c.grad(2), {-1, 1, 1}) * square(r) * r * distance / n;
        return grads[0] + rows.back(more, c.shape(0));
    });
    for (int i = 1; i < c.inputs(); ++i) c.give(i, grads[size_t(i)]);
}

/// As layer_norm_backward_vjp, on rows of segments.
void channel_norm_backward_vjp(Backward& c) {
    const T x = c.input(1), mean = c.input(2), rstd = c.input(3);
    const Channels rows(c.params(), c.shape(1));
    const bool weighted = c.inputs() > 4;
    const double n = double(rows.n * rows.segments());
    const auto mean_of = [&](const T& q) { return sum(q, {1, 2}, true) / n; };
    const T r = reshape(rstd, {-1, 1, 1}), y = (rows.rows_of(x) - reshape(mean, {-1, 1, 1})) * r;
    const T g = rows.rows_of(c.input(0)), u = rows.rows_of(c.grad(0));
    const T h = weighted ? g * rows.spread(c.input(4)) : g;
    const T v = rows.spread(c.grad(1)), s = rows.spread(c.grad(2));
    const T nu = rows.rows_of(through_channels(c, c.grad(0), x, mean, rstd)[0]);
    c.give(0, [&] {
        const T first = weighted ? nu * rows.spread(c.input(4)) : nu;
        return rows.back(first + v * y + s, c.shape(0));
    });
    c.give(1, [&] {
        const T q = g * v - r * (u * mean_of(h * y) + h * mean_of(u * y));
        const T direct = through_channels(c, rows.back(q, c.shape(1)), x, mean, rstd)[0];
        return direct - rows.back(r * mean_of(nu * h) * y, c.shape(1));
    });
    if (weighted)
        c.give(4, [&] {
            const T slopes = sum(
                reshape(rows.back(g * nu, c.shape(1)), {rows.samples, rows.channels, rows.n}), {0, 2}, false);
            return slopes;
        });
}

const Op& channel_norm_backward_op = enter({.name = "channel_norm_backward",
                                            .family = Family::fused,
                                            .arity = -1,
                                            .outputs = 3,
                                            .types = floats,
                                            .rule = channel_norm_backward_rule,
                                            .cpu = channel_norm_backward_kernel,
                                            .cuda = cuda::channel_norm_backward,
                                            .vjp = channel_norm_backward_vjp,
                                            .saves = in0 | in1 | in2 | in3 | in4,
                                            .flops_per_element = 14});
const Op& channel_norm_op = enter({.name = "channel_norm",
                                   .family = Family::fused,
                                   .arity = -1,
                                   .outputs = 3,
                                   .types = floats,
                                   .rule = channel_norm_rule,
                                   .cpu = channel_norm_kernel,
                                   .cuda = cuda::channel_norm,
                                   .vjp = channel_norm_vjp,
                                   .saves = in0 | in1 | out1 | out2,
                                   .flops_per_element = 9});

}  // namespace

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

std::array<T, 3> channel_norm(const T& x, int64_t groups, const T& weight, const T& bias, double eps) {
    Params params;
    params.b = {groups};
    params.x = eps;
    if (!weight) {
        require(!bias, "[channel_norm] a bias without a weight; give both");
        return run_all(channel_norm_op, params, x);
    }
    return bias ? run_all(channel_norm_op, params, x, weight, bias)
                : run_all(channel_norm_op, params, x, weight);
}

}  // namespace accelera::tensora
