// Entries of softmax, and of cross entropy with class indices.
#include <algorithm>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

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
        require_shape(
            x->shape() == call.input().shape() && x->dtype() == call.input().dtype() && x->dims() > 0, "[",
            call.op.name, "] tensors of shapes ", call.input().shape().words(), " and ", x->shape().words(),
            "; give one shape and type, with at least one axis");
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
           .cuda = cuda::softmax_backward,
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
                                           .cuda = cuda::log_softmax_backward,
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
           .cuda = cuda::softmax,
           .vjp = [](Backward& c) { c.give(0, [&] { return softmax_backward(c.grad(), c.output()); }); },
           .saves = out0,
           .autocast = Precision::single,
           .flops_per_element = 14});
const Op& log_softmax_op =
    enter({.name = "log_softmax",
           .family = Family::fused,
           .arity = 1,
           .types = floats,
           .rule = same_rule,
           .cpu = softmax_kernel<&RowLoops::log_softmax>,
           .cuda = cuda::log_softmax,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] { return run(log_softmax_backward_op, no_params, c.grad(), c.output()); });
               },
           .saves = out0,
           .autocast = Precision::single,
           .flops_per_element = 14});

T along(const Op& op, const T& x, int64_t given) {
    if (x->dims() == 0) return reshape(run(op, no_params, reshape(x, {1})), {});
    const int axis = axis_of(given, x->dims(), op.name), last = x->dims() - 1;
    return axis == last ? run(op, no_params, x)
                        : transpose(run(op, no_params, transpose(x, axis, last)), axis, last);
}

// --- cross entropy ---------------------------------------------------------------------------------------

DType computed(DType dtype) { return is(dtype, halves) ? DType::f32 : dtype; }

/// Logits, targets and weights of a call whose logits are input `first`; null where there are no weights.
struct Operands {
    T x, target, weight;

    Operands(const Call& call, size_t logits, size_t targets, size_t weights)
        : x(contiguous(call.in[logits])), target(contiguous(call.in[targets])) {
        if (call.in.size() > weights) weight = contiguous(cast(call.in[weights], computed(x->dtype())));
    }

    CrossEntropyJob job(const Params& params) const {
        const int64_t n = x->shape().back();
        double total = double(n);
        if (weight) total = cast(sum(weight, {0}, false), DType::f64)->data<double>()[0];
        return {n,
                x->bytes(),
                target->data<int64_t>(),
                weight ? weight->bytes() : nullptr,
                total,
                params.x,
                params.b[0],
                nullptr,
                nullptr,
                nullptr};
    }

    template <typename Loop>
    void run(const CrossEntropyJob& job, Loop loop) const {
        parallel_for(target->size(), rows_at_once(job.n),
                     [&](int64_t begin, int64_t end) { loop(job, begin, end); });
    }
};

void check(const Call& call, size_t logits, size_t targets, size_t weights) {
    const Tensor &x = *call.in[logits], &target = *call.in[targets];
    if (!is(x.dtype(), floats))
        fail(Kind::dtype, "[cross_entropy] logits of type ", name_of(x.dtype()),
             "; convert with .to(float32)");
    if (target.dtype() != DType::i64)
        fail(Kind::dtype, "[cross_entropy] class indices of type ", name_of(target.dtype()), "; give int64");
    require_shape(x.dims() == 2 && target.dims() == 1 && target.shape()[0] == x.shape()[0],
                  "[cross_entropy] class indices of shape ", target.shape().words(), " for logits of shape ",
                  x.shape().words());
    if (call.in.size() > weights)
        require_shape(call.in[weights]->shape() == Dims{x.shape()[1]}, "[cross_entropy] weights of shape ",
                      call.in[weights]->shape().words(), " for ", x.shape()[1], " classes");
}

void check_classes(const Operands& given, int64_t ignored) {
    const int64_t classes = given.x->shape()[1];
    const int64_t* const target = given.target->data<int64_t>();
    for (int64_t i = 0; i < given.target->size(); ++i)
        if ((target[i] < 0 || target[i] >= classes) && target[i] != ignored)
            fail(Kind::index, "[cross_entropy] class ", target[i], " at ", i, " of ", classes,
                 " classes; give one from 0 to ", classes - 1, ", or ignore_index=", ignored);
}

void cross_entropy_rule(Call& call) {
    check(call, 0, 1, 2);
    for (int i = 0; i < 3; ++i) call.make(call.input(1).shape(), computed(call.input().dtype()), i);
}

void cross_entropy_kernel(Call& call) {
    const Operands given(call, 0, 1, 2);
    check_classes(given, call.params.b[0]);
    CrossEntropyJob job = given.job(call.params);
    job.loss = call.out[0]->bytes();
    job.lse = call.out[1]->bytes();
    job.row_weight = call.out[2]->bytes();
    given.run(job, row_loops(given.x->dtype()).cross_entropy);
    check_classes(given, call.params.b[0]);  // another thread may have changed them meanwhile
}

void cross_entropy_backward_rule(Call& call) {
    check(call, 1, 2, 4);
    call.make(call.input(1).shape(), call.input(1).dtype());
}

void cross_entropy_backward_kernel(Call& call) {
    const Operands given(call, 1, 2, 4);
    check_classes(given, call.params.b[0]);
    const T g = contiguous(cast(call.in[0], computed(given.x->dtype()))), lse = contiguous(call.in[3]);
    CrossEntropyJob job = given.job(call.params);
    job.loss = g->bytes();
    job.lse = lse->bytes();
    job.gx = call.out[0]->bytes();
    given.run(job, row_loops(given.x->dtype()).cross_entropy_backward);
}

/// Inputs of the backward entry, in order: gradients of the losses, logits, targets, lse, and weights if any.
T backward_of(Backward& c, const T& g, int logits, const T& lse, int weights) {
    static const Op& op = op_named("cross_entropy_backward");
    const T x = c.input(logits), target = c.input(logits + 1);
    return c.inputs() > weights ? run(op, c.params(), g, x, target, lse, c.input(weights))
                                : run(op, c.params(), g, x, target, lse);
}

void cross_entropy_vjp(Backward& c) {
    c.give(0, [&] { return backward_of(c, c.grad(), 0, c.output(1), 2); });
}

/// Each row of the result is g (k p - constants), with the probabilities p and k the sum of the constants.
void cross_entropy_backward_vjp(Backward& c) {
    const T u = c.grad(), x = c.input(1);
    const T slope = backward_of(c, ones(c.shape(0), c.dtype(0)), 1, c.input(3), 4);
    c.give(0, [&] { return sum(u * slope, {-1}, false); });
    c.give(1, [&] {
        const T p = softmax(x, -1);
        // k p = slope + constants, and the constants are what the slope is far from the target's side: p -
        // onehot.
        const Params& params = c.params();
        const T target = c.input(2);
        const T kept =
            cast(logical_not(equal(target, Tensor::scalar(DType::i64, double(params.b[0])))), x->dtype());
        const T safe = target * cast(kept, DType::i64);
        const bool weighted = c.inputs() > 4;
        const double classes = double(x->shape().back());
        T k = kept;
        if (weighted) {
            const T weight = cast(c.input(4), x->dtype());
            k = kept *
                (take(weight, safe, 0) * (1 - params.x) + sum(weight, {0}, false) * (params.x / classes));
        }
        return unsqueeze(c.input(0) * k, -1) * softmax_backward(u, p);
    });
}

/// x: label smoothing; b: the target that is ignored. Outputs: loss, log-sum-exp and weight of each row.
const Op& cross_entropy_op = enter({.name = "cross_entropy",
                                    .family = Family::fused,
                                    .arity = -1,
                                    .outputs = 3,
                                    .rule = cross_entropy_rule,
                                    .cpu = cross_entropy_kernel,
                                    .cuda = cuda::cross_entropy,
                                    .vjp = cross_entropy_vjp,
                                    .saves = in0 | in1 | in2 | out1,
                                    .autocast = Precision::single,
                                    .flops_per_element = 14});
const Op& cross_entropy_backward_op = enter({.name = "cross_entropy_backward",
                                             .family = Family::fused,
                                             .arity = -1,
                                             .rule = cross_entropy_backward_rule,
                                             .cpu = cross_entropy_backward_kernel,
                                             .cuda = cuda::cross_entropy_backward,
                                             .vjp = cross_entropy_backward_vjp,
                                             .saves = in0 | in1 | in2 | in3 | in4,
                                             .flops_per_element = 14});

}  // namespace

T softmax(const T& x, int axis) { return along(softmax_op, x, axis); }
T log_softmax(const T& x, int axis) { return along(log_softmax_op, x, axis); }
T softmax_backward(const T& g, const T& y) { return run(softmax_backward_op, no_params, g, y); }

std::array<T, 3> cross_entropy(const T& x, const T& target, const T& weight, int64_t ignored,
                               double smoothing) {
    Params params;
    params.x = smoothing;
    params.b = {ignored};
    const T classes = recorded_index(target, {x});
    return weight ? run_all(cross_entropy_op, params, x, classes, weight)
                  : run_all(cross_entropy_op, params, x, classes);
}

}  // namespace accelera::tensora
