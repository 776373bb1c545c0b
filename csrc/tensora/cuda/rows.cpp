// Launches of the kernels in rows.cuh: reductions, fused operations on rows, steps of optimizers.
#include <algorithm>
#include <cstring>

#include "tensora/core/basic_functions.h"
#include "tensora/cuda/kernels.h"

namespace accelera::tensora::cuda {

namespace {

constexpr int threads = 256;

int device_index(const Call& call) { return call.out[0]->device().index; }

/// The type that reductions accumulate in, and that halves are computed in.
DType computed(DType dtype) { return is(dtype, halves) ? DType::f32 : dtype; }
T prepared(const T& x, DType dtype) { return contiguous(cast(x, computed(dtype))); }

// --- reductions --------------------------------------------------------------------------------------------

/// Axes of a reduction that are kept and that are folded, those that lie as one joined. Steps in elements.
struct Axes {
    Dims shape, steps;

    void add(int64_t extent, int64_t step) {
        if (extent == 1) return;
        const int last = shape.size() - 1;
        if (last >= 0 && steps[last] == step * extent) {
            shape[last] *= extent;
            steps[last] = step;
        } else {
            shape.push_back(extent);
            steps.push_back(step);
        }
    }
    void complete() {
        if (shape.empty()) shape.push_back(1), steps.push_back(0);
    }
};

struct Folding {
    Axes kept, folded;
    int64_t outputs, length;

    Folding(const Tensor& x, const Dims& axes) {
        for (int i = 0; i < x.dims(); ++i)
            (axes.contains(i) ? folded : kept).add(x.shape()[i], x.strides()[i]);
        kept.complete();
        folded.complete();
        outputs = kept.shape.product();
        length = folded.shape.product();
    }
    /// Whether neighbouring outputs lie closer than neighbouring elements of one, or have few elements.
    bool by_threads() const {
        return length <= 16 || (outputs > 1 && std::abs(kept.steps.back()) < std::abs(folded.steps.back()));
    }
    /// Pieces of an output, so that the device has enough to do.
    int64_t parts() const {
        const int64_t pieces = by_threads() ? outputs : outputs * threads;
        return std::clamp<int64_t>((int64_t(1) << 18) / std::max<int64_t>(pieces, 1), 1,
                                   std::max<int64_t>(1, std::min<int64_t>(length / 256, 1024)));
    }
};

/// Fold x into `out`; the elements of both have any of the types that cast_value converts.
void fold(const Folded& kind, const Tensor& x, const Folding& folding, int64_t parts, const Tensor& out) {
    const bool by_threads = folding.by_threads();
    const std::string ranks = text(folding.kept.shape.size(), ", ", folding.folded.shape.size());
    const std::string accumulator = type_name(kind.accumulator);
    Arguments arguments;
    arguments.add(folding.outputs).add(folding.length).add(parts);
    arguments.add(folding.kept.shape).add(folding.kept.steps);
    arguments.add(folding.folded.shape).add(folding.folded.steps);
    arguments.add_tensor(&x).add_tensor(&out);
    const int64_t pieces = folding.outputs * parts;
    const Launch launch =
        by_threads ? Launch{blocks_for(pieces)} : Launch{pieces, block_for(folding.length / parts)};
    run_kernel(out.device().index,
               {"reduction", "tensora/cuda/rows.cuh", text("using Arguments = Reduction<", ranks, ">;"),
                text(by_threads ? "reduce_by_threads<" : "reduce_by_blocks<", kind.join, '<', accumulator,
                     ">, ", type_name(x.dtype()), ", ", accumulator, ", ", type_name(out.dtype()), ">(a);")},
               launch, arguments);
}

void reduce(Call& call) {
    const Folded kind = folded(call.op.name, call.input().dtype());
    const Tensor &x = call.input(), &out = *call.out[0];
    if (out.size() == 0) return;
    const Folding folding(x, call.params.a);
    const int64_t parts = folding.parts();
    if (parts == 1) return fold(kind, x, folding, 1, out);
    const T partial = Tensor::empty({folding.outputs, parts}, kind.accumulator);
    fold(kind, x, folding, parts, *partial);
    fold(kind, *partial, Folding(*partial, {1}), 1, out);
}

DType sum_type(DType dtype) {
    if (is(dtype, inexact)) return computed(dtype);
    return is(dtype, unsigneds) ? DType::u64 : DType::i64;
}

void find_extremes(Call& call, bool largest) {
    const T x = contiguous(call.in[0]);
    const int64_t n = x->shape().back();
    if (call.out[0]->size() == 0) return;
    Arguments arguments;
    arguments.add(call.out[0]->size()).add(n).add_tensor(x.get()).add_tensor(call.out[0].get());
    const char* const type = type_name(x->dtype());
    run_kernel(
        device_index(call),
        {call.op.name, "tensora/cuda/rows.cuh",
         text("struct Arguments { int64_t lines, n; const ", type, "* x; int64_t* out; };"),
         text("find_extremes<", type, ", ", largest ? "true" : "false", ">(a.lines, a.n, 1, a.x, a.out);")},
        {call.out[0]->size(), block_for(n)}, arguments);
}

/// Extents of a scan: lines of n elements, `inner` apart.
struct ScanLines {
    int64_t n, inner = 1, outer;
    ScanLines(const Dims& shape, int axis) : n(shape[axis]) {
        for (int i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
        outer = shape.product() / (n * inner);
    }
};

/// Running results of `join`, of accumulators of type `accumulator` that are made of an element by `load` and
/// stored by `store`: expressions of a.x, a.out, the place i, the index k along the axis and the value v.
void scan(Call& call, int axis, const std::string& join, const std::string& accumulator, const char* load,
          const std::string& store) {
    const T x = contiguous(call.in[0]);
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const ScanLines lines(x->shape(), axis);
    Arguments arguments;
    arguments.add(lines.outer).add(lines.n).add(lines.inner).add_tensor(x.get()).add_tensor(&out);
    run_kernel(device_index(call),
               {call.op.name, "tensora/cuda/rows.cuh",
                text("struct Arguments { int64_t outer, n, inner; const ", type_name(x->dtype()), "* x; ",
                     type_name(out.dtype()), "* out; };"),
                text("using A = ", accumulator, "; scan_lines<", join, ", A>(a.outer, a.n, a.inner, ",
                     "[&](int64_t i, int64_t k) -> A { return ", load,
                     "; }, [&](int64_t i, A v) { a.out[i] = ", store, "; });")},
               {lines.outer * lines.inner, block_for(lines.n)}, arguments);
}

void scan(Call& call, const char* join, DType accumulator) {
    scan(call, call.params.mode, text(join, "<A>"), type_name(accumulator), "cast_value<A>(a.x[i])",
         text("cast_value<", type_name(call.out[0]->dtype()), ">(v)"));
}

}  // namespace

Folded folded(const char* reduction, DType dtype) {
    constexpr const char* names[] = {"sum", "prod", "max", "min", "any", "all"};
    constexpr const char* joins[] = {"Sum", "Product", "Largest", "Smallest", "Any", "All"};
    int i = 0;
    while (std::strcmp(names[i], reduction) != 0) ++i;
    return {joins[i], i < 2 ? sum_type(dtype) : i < 4 ? computed(dtype) : DType::bool_};
}

void sum(Call& call) { reduce(call); }
void prod(Call& call) { reduce(call); }
void max(Call& call) { reduce(call); }
void min(Call& call) { reduce(call); }
void any(Call& call) { reduce(call); }
void all(Call& call) { reduce(call); }
void argmax(Call& call) { find_extremes(call, true); }
void argmin(Call& call) { find_extremes(call, false); }
void cumsum(Call& call) { scan(call, "Sum", sum_type(call.input().dtype())); }
void cumprod(Call& call) { scan(call, "Product", sum_type(call.input().dtype())); }
void logcumsumexp(Call& call) { scan(call, "SumOfPowers", computed(call.input().dtype())); }

void running_extreme(Call& call) {
    const std::string type = type_name(computed(call.input().dtype()));
    scan(call, call.input().dims() - 1, text("Running<", type, call.params.flag ? ", true>" : ", false>"),
         text("Found<", type, ">"), "{cast_value<decltype(A::value)>(a.x[i]), k}", "v.at");
}

void linear_recurrence(Call& call) {
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const T a = contiguous(cast(call.in[0], out.dtype())), b = contiguous(cast(call.in[1], out.dtype()));
    const ScanLines lines(out.shape(), call.params.mode);
    Arguments arguments;
    arguments.add(lines.outer).add(lines.n).add(lines.inner);
    arguments.add_tensor(a.get()).add_tensor(b.get()).add_tensor(&out);
    const char* const type = type_name(out.dtype());
    run_kernel(
        device_index(call),
        {"linear_recurrence", "tensora/cuda/rows.cuh",
         text("struct Arguments { int64_t outer, n, inner; const ", type, " *a, *b; ", type, "* out; };"),
         "recur_lines(a.outer, a.n, a.inner, a.a, a.b, a.out);"},
        {blocks_for(lines.outer * lines.inner)}, arguments);
}

// --- rows --------------------------------------------------------------------------------------------------

namespace {

void run_softmax(Call& call, const char* function, const char* logarithm) {
    const T x = contiguous(call.in[0]), y = call.in.size() > 1 ? contiguous(call.in[1]) : T();
    if (x->size() == 0) return;
    const int64_t n = x->shape().back(), rows = x->size() / n;
    Arguments arguments;
    arguments.add(rows).add(n).add_tensor(x.get());
    if (y) arguments.add_tensor(y.get());
    arguments.add_tensor(call.out[0].get());
    const char* const type = type_name(x->dtype());
    run_kernel(
        device_index(call),
        {call.op.name, "tensora/cuda/rows.cuh",
         text("struct Arguments { int64_t rows, n; const ", type, "* x; ",
              y ? text("const ", type, "* y; ") : "", type, "* out; };"),
         text(function, '<', type, ", ", logarithm, ">(a.rows, a.n, a.x, ", y ? "a.y, " : "", "a.out);")},
        {rows, block_for(n)}, arguments);
}

/// Inputs of cross entropy, of which the logits are input `first`.
void run_cross_entropy(Call& call, size_t first, size_t weights, const T& g) {
    const T x = contiguous(call.in[first]), target = contiguous(call.in[first + 1]);
    const int64_t n = x->shape().back(), rows = target->size();
    if (x->size() == 0) return;
    const T weight = call.in.size() > weights ? prepared(call.in[weights], x->dtype()) : T();
    const T weight_sum = weight ? cast(tensora::sum(weight, {0}, false), DType::f64) : T();
    const bool backward = bool(g);
    const T lse = backward ? contiguous(call.in[3]) : call.out[1];
    Arguments arguments;
    arguments.add(rows).add(n).add(call.params.b[0]).add(call.params.x);
    arguments.add_tensor(x.get())
        .add_tensor(target.get())
        .add_tensor(weight.get())
        .add_tensor(weight_sum.get());
    arguments.add_tensor(backward ? g.get() : call.out[0].get()).add_tensor(lse.get());
    arguments.add_tensor(backward ? nullptr : call.out[2].get());
    arguments.add_tensor(backward ? call.out[0].get() : nullptr);
    run_kernel(device_index(call),
               {call.op.name, "tensora/cuda/rows.cuh",
                text("using Arguments = CrossEntropy<", type_name(x->dtype()), ">;"),
                backward ? "cross_entropy_backward_rows(a);" : "cross_entropy_rows(a);"},
               {rows, block_for(n)}, arguments);
}

void check_classes(const Call& call) {
    const int64_t classes = call.input(0).shape().back(), ignored = call.params.b[0];
    const T target = to_device(contiguous(call.in[1]), cpu);
    const int64_t* const at = target->data<int64_t>();
    for (int64_t i = 0; i < target->size(); ++i)
        if ((at[i] < 0 || at[i] >= classes) && at[i] != ignored)
            fail(Kind::index, "[cross_entropy] class ", at[i], " at ", i, " of ", classes,
                 " classes; give one from 0 to ", classes - 1, ", or ignore_index=", ignored);
}

struct NormTensors {
    T x, weight, bias, out, mean, rstd;
};

/// Tensors of a forward entry: x, and perhaps weight and bias.
NormTensors forward_tensors(const Call& call) {
    const DType dtype = call.input().dtype();
    return {contiguous(call.in[0]),
            call.in.size() > 1 ? prepared(call.in[1], dtype) : T(),
            call.in.size() > 2 ? prepared(call.in[2], dtype) : T(),
            call.out[0],
            call.out[1],
            call.out[2]};
}
/// Of a backward entry: gradient, x, mean, 1 / deviation, and perhaps the weight.
NormTensors backward_tensors(const Call& call) {
    const DType dtype = call.input(1).dtype();
    return {contiguous(call.in[1]),
            call.in.size() > 4 ? prepared(call.in[4], dtype) : T(),
            T(),
            call.out[0],
            contiguous(call.in[2]),
            contiguous(call.in[3])};
}

Arguments norm_arguments(const NormTensors& t, int64_t n, const Params& params) {
    Arguments arguments;
    arguments.add(n ? t.x->size() / n : 0).add(n).add(params.x).add(params.flag);
    for (const T* one : {&t.x, &t.weight, &t.bias, &t.out, &t.mean, &t.rstd})
        arguments.add_tensor(one->get());
    return arguments;
}

}  // namespace

void softmax(Call& call) { run_softmax(call, "softmax_rows", "false"); }
void log_softmax(Call& call) { run_softmax(call, "softmax_rows", "true"); }
void softmax_backward(Call& call) { run_softmax(call, "softmax_backward_rows", "false"); }
void log_softmax_backward(Call& call) { run_softmax(call, "softmax_backward_rows", "true"); }

void cross_entropy(Call& call) {
    check_classes(call);
    run_cross_entropy(call, 0, 2, T());
}
void cross_entropy_backward(Call& call) {
    run_cross_entropy(call, 1, 4, prepared(call.in[0], call.input(1).dtype()));
}

void layer_norm(Call& call) {
    const DType dtype = call.input().dtype();
    const NormTensors tensors = forward_tensors(call);
    const int64_t n = call.params.a.product();
    if (tensors.x->size() == 0) return;
    Arguments arguments = norm_arguments(tensors, n, call.params);
    run_kernel(device_index(call),
               {call.op.name, "tensora/cuda/rows.cuh",
                text("using Arguments = Norm<", type_name(dtype), ">;"), "norm_rows(a);"},
               {tensors.x->size() / n, block_for(n)}, arguments);
}

void layer_norm_backward(Call& call) {
    const DType dtype = call.input(1).dtype();
    const T g = contiguous(call.in[0]);
    const NormTensors tensors = backward_tensors(call);
    const int64_t n = call.params.a.product(), rows = n ? tensors.x->size() / n : 0;
    const char* const type = type_name(dtype);
    if (rows > 0) {
        Arguments arguments = norm_arguments(tensors, n, call.params);
        arguments.add_tensor(g.get());
        run_kernel(device_index(call),
                   {call.op.name, "tensora/cuda/rows.cuh",
                    text("struct Arguments { Norm<", type, "> job; const ", type, "* g; };"),
                    "norm_backward_rows(a.job, a.g);"},
                   {rows, block_for(n)}, arguments);
    }
    if (!tensors.weight) return;
    const int64_t parts = std::clamp<int64_t>(rows / 32, 1, 256);
    const T gw = Tensor::empty({parts, n}, computed(dtype)), gb = Tensor::empty({parts, n}, computed(dtype));
    Arguments arguments = norm_arguments(tensors, n, call.params);
    arguments.add_tensor(g.get()).add(parts).add_tensor(gw.get()).add_tensor(gb.get());
    const char* const wide = type_name(computed(dtype));
    run_kernel(device_index(call),
               {call.op.name, "tensora/cuda/rows.cuh",
                text("struct Arguments { Norm<", type, "> job; const ", type, "* g; int64_t parts; ", wide,
                     " *gw, *gb; };"),
                "norm_weight_gradients(a.job, a.g, a.parts, a.gw, a.gb);"},
               {blocks_for(n * parts)}, arguments);
    copy_on_device(*reshape(tensora::sum(gw, {0}, false), call.out[1]->shape()), *call.out[1]);
    copy_on_device(*reshape(tensora::sum(gb, {0}, false), call.out[2]->shape()), *call.out[2]);
}

// --- normalization of channels -----------------------------------------------------------------------------

namespace {

/// Samples, channels and elements of a channel as rows; see ops/normalization.cpp.
struct Channels {
    int64_t samples, channels, groups, n, rows, segments;

    Channels(const Params& params, const Dims& shape)
        : samples(shape[0]),
          channels(shape[1]),
          groups(params.b[0]),
          n(shape.product() / (samples * channels)),
          rows(groups ? samples * groups : channels),
          segments(groups ? channels / groups : samples) {}
    /// Sums over the segments of each channel.
    T of_channels(const T& sums) const {
        return groups ? tensora::sum(reshape(sums, {samples, channels}), {0}, false)
                      : tensora::sum(reshape(sums, {channels, samples}), {1}, false);
    }
};

void run_channel_norm(Call& call, const char* function, const NormTensors& t, const T& g, const T& sums) {
    const Channels c(call.params, t.x->shape());
    Arguments arguments;
    arguments.add(c.rows).add(c.n).add(c.segments);
    arguments.add(c.groups ? c.segments * c.n : c.n).add(c.groups ? c.n : c.channels * c.n);
    arguments.add(c.groups).add(call.params.x);
    for (const T* one : {&t.x, &t.weight, &t.bias, &t.mean, &t.rstd, &t.out, &g, &sums})
        arguments.add_tensor(one->get());
    run_kernel(
        device_index(call),
        {call.op.name, "tensora/cuda/rows.cuh",
         text("using Arguments = ChannelNorm<", type_name(t.x->dtype()), ">;"), text(function, "(a);")},
        {c.rows, block_for(c.n * c.segments)}, arguments);
}

}  // namespace

void channel_norm(Call& call) {
    if (call.input().size() == 0) return;
    const NormTensors tensors = forward_tensors(call);
    run_channel_norm(call, "channel_norm_rows", tensors, T(), T());
}

void channel_norm_backward(Call& call) {
    const DType dtype = call.input(1).dtype();
    if (call.input(1).size() == 0) {
        for (int i : {1, 2}) fill_on_device(*call.out[i]);
        return;
    }
    const NormTensors tensors = backward_tensors(call);
    const Channels c(call.params, tensors.x->shape());
    const T sums = Tensor::empty({c.rows * c.segments, 2}, computed(dtype));
    run_channel_norm(call, "channel_norm_backward_rows", tensors, contiguous(call.in[0]), sums);
    copy_on_device(*c.of_channels(narrow(sums, 1, 1, 1)), *call.out[1]);
    copy_on_device(*c.of_channels(narrow(sums, 1, 0, 1)), *call.out[2]);
}

// --- optimizers --------------------------------------------------------------------------------------------

void sgd_step(const Tensor& param, const Tensor& grad, const Tensor* buffer, const SgdStep& options) {
    Arguments arguments;
    arguments.add(param.size()).add(options.lr).add(options.momentum).add(options.dampening);
    arguments.add(options.weight_decay).add(options.nesterov).add(options.maximize).add(options.first);
    arguments.add_tensor(&param).add_tensor(&grad).add_tensor(buffer);
    run_kernel(param.device().index,
               {"sgd_step", "tensora/cuda/rows.cuh",
                text("using Arguments = Sgd<", type_name(param.dtype()), ">;"), "sgd_step(a);"},
               {blocks_for(param.size())}, arguments);
}

void adam_step(const AdamTensors& tensors, const AdamStep& options) {
    const Tensor& param = *tensors.param;
    Arguments arguments;
    arguments.add(param.size());
    for (const double one : {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay,
                             options.correction1, options.correction2})
        arguments.add(one);
    arguments.add(options.decoupled).add(options.maximize);
    for (const Tensor* one : {tensors.param, tensors.grad, tensors.mean, tensors.square, tensors.most})
        arguments.add_tensor(one);
    run_kernel(param.device().index,
               {"adam_step", "tensora/cuda/rows.cuh",
                text("using Arguments = Adam<", type_name(param.dtype()), ">;"), "adam_step(a);"},
               {blocks_for(param.size())}, arguments);
}

}  // namespace accelera::tensora::cuda
