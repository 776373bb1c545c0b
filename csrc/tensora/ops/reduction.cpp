// Entries of the reductions and scans.
#include <algorithm>
#include <cstring>

#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

/// A reduction as loops: outer axes are kept, then come the reduced ones; neighbours that lie as one are one.
struct Plan {
    Dims kept, kept_steps;      // bytes
    Dims folded, folded_steps;  // bytes
    int64_t outputs = 1;
    int64_t lines = 1;   // of the folded axes but the last
    int64_t length = 1;  // of the last
    int64_t step = 0;

    Plan(const Tensor& x, const Dims& axes) {
        const int64_t each = size_of(x.dtype());
        for (int i = 0; i < x.dims(); ++i) {
            const bool is_folded = axes.contains(i);
            Dims& shape = is_folded ? folded : kept;
            Dims& steps = is_folded ? folded_steps : kept_steps;
            const int64_t step = x.strides()[i] * each;
            if (x.shape()[i] == 1) continue;
            if (!shape.empty() && steps.back() == step * x.shape()[i]) {
                shape.back() *= x.shape()[i];
                steps.back() = step;
            } else {
                shape.push_back(x.shape()[i]);
                steps.push_back(step);
            }
        }
        if (folded.empty()) {
            folded.push_back(1);
            folded_steps.push_back(each);
        }
        outputs = kept.product();
        length = folded.back();
        step = folded_steps.back();
        lines = length ? folded.product() / length : 0;
        if (length == 0) lines = 0;
    }

    /// Whether neighbouring outputs lie closer than neighbouring elements of one.
    bool by_rows() const {
        return !kept.empty() && kept.back() > 1 && std::abs(kept_steps.back()) < std::abs(step);
    }
};

int64_t place_of(int64_t index, const Dims& shape, const Dims& steps, int n) {
    int64_t place = 0;
    for (int i = n - 1; i >= 0; --i) {
        place += index % shape[i] * steps[i];
        index /= shape[i];
    }
    return place;
}

constexpr int64_t chunk = 65536;

/// Fold lines [begin, end) of one output.
void fold_lines(const Plan& plan, const Reducer& reducer, const char* x, int64_t begin, int64_t end,
                char* acc) {
    for (int64_t line = begin; line < end; ++line)
        reducer.line(plan.length, x + place_of(line, plan.folded, plan.folded_steps, plan.folded.size() - 1),
                     plan.step, acc);
}

/// Few outputs of many elements: pieces of one output, whose size depends on nothing but the shape, so that
/// the result does not depend on the number of threads.
void fold_in_pieces(const Plan& plan, const Reducer& reducer, const char* x, char* acc) {
    const bool within = plan.lines == 1;
    const int64_t n = within ? plan.length : plan.lines;
    const int64_t step = within ? chunk : std::max<int64_t>(1, chunk / plan.length);
    const int64_t pieces = (n + step - 1) / step;
    const Scratch scratch(pieces * reducer.acc_size);
    char* const parts = scratch.as<char>();
    reducer.start(pieces, parts);
    parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const int64_t begin = i * step, end = std::min(n, begin + step);
            char* const part = parts + i * reducer.acc_size;
            if (within)
                reducer.line(end - begin, x + begin * plan.step, plan.step, part);
            else
                fold_lines(plan, reducer, x, begin, end, part);
        }
    });
    for (int64_t i = 0; i < pieces; ++i) reducer.merge(1, parts + i * reducer.acc_size, acc);
}

/// Outputs that lie side by side, a block of them at a time.
void fold_rows(const Plan& plan, const Reducer& reducer, const char* x, char* out, int64_t out_size) {
    constexpr int64_t block = 1024;
    const int64_t width = plan.kept.back();
    const int64_t blocks = (width + block - 1) / block;
    const int64_t total = plan.lines * plan.length;
    const int64_t grain_blocks =
        std::max<int64_t>(1, grain / std::max<int64_t>(1, total * std::min(width, block)));
    parallel_for(plan.outputs / width * blocks, grain_blocks, [&](int64_t first, int64_t last) {
        alignas(64) char acc[block * sizeof(C128)];
        for (int64_t i = first; i < last; ++i) {
            const int64_t row = i / blocks, begin = i % blocks * block, n = std::min(block, width - begin);
            const char* from = x + place_of(row, plan.kept, plan.kept_steps, plan.kept.size() - 1) +
                               begin * plan.kept_steps.back();
            reducer.start(n, acc);
            for (int64_t line = 0; line < plan.lines; ++line) {
                const char* at =
                    from + place_of(line, plan.folded, plan.folded_steps, plan.folded.size() - 1);
                for (int64_t k = 0; k < plan.length; ++k)
                    reducer.rows(n, at + k * plan.step, plan.kept_steps.back(), acc);
            }
            reducer.finish(n, acc, out + (row * width + begin) * out_size);
        }
    });
}

void reduce(const Call& call, Reduction reduction) {
    const Tensor& x = call.input();
    Tensor& out = *call.out[0];
    const Reducer& reducer = reducers().of[int(reduction)][int(x.dtype())];
    const Plan plan(x, call.params.a);
    const int64_t out_size = size_of(reducer.out);
    if (out.size() == 0) return;
    if (plan.by_rows()) return fold_rows(plan, reducer, x.bytes(), out.bytes(), out_size);
    const int64_t each = plan.lines * plan.length;
    if (each > chunk && plan.outputs < 64) {
        for (int64_t i = 0; i < plan.outputs; ++i) {
            alignas(64) char acc[sizeof(C128)];
            reducer.start(1, acc);
            fold_in_pieces(plan, reducer,
                           x.bytes() + place_of(i, plan.kept, plan.kept_steps, plan.kept.size()), acc);
            reducer.finish(1, acc, out.bytes() + i * out_size);
        }
        return;
    }
    parallel_for(plan.outputs, std::max<int64_t>(1, grain / std::max<int64_t>(each, 1)),
                 [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                         alignas(64) char acc[sizeof(C128)];
                         reducer.start(1, acc);
                         fold_lines(plan, reducer,
                                    x.bytes() + place_of(i, plan.kept, plan.kept_steps, plan.kept.size()), 0,
                                    plan.lines, acc);
                         reducer.finish(1, acc, out.bytes() + i * out_size);
                     }
                 });
}

Dims reduced_shape(const Dims& shape, const Dims& axes, bool keep) {
    Dims result;
    for (int i = 0; i < shape.size(); ++i) {
        if (!axes.contains(i))
            result.push_back(shape[i]);
        else if (keep)
            result.push_back(1);
    }
    return result;
}

template <Reduction reduction>
void rule(Call& call) {
    const Tensor& x = call.input();
    const Reducer& reducer = reducers().of[int(reduction)][int(x.dtype())];
    if (!reducer.line) fail(Kind::dtype, "[", call.op.name, "] not defined for ", name_of(x.dtype()));
    if constexpr (reduction == Reduction::max || reduction == Reduction::min)
        for (int64_t axis : call.params.a)
            require_shape(x.shape()[int(axis)] > 0, "[", call.op.name, "] axis ", axis, " of ",
                          x.shape().words(), " is empty, and nothing is the ", call.op.name,
                          " of no elements");
    call.make(reduced_shape(x.shape(), call.params.a, call.params.flag), reducer.out);
}

template <Reduction reduction>
void kernel(Call& call) {
    reduce(call, reduction);
}

/// A reduced tensor with its axes back, so that it broadcasts to the input.
T restored(const T& reduced, Backward& c) {
    return reshape(reduced, reduced_shape(c.shape(), c.params().a, true));
}

/// params of all: a: axes, flag: whether they stay with extent 1.
template <Reduction reduction>
const Op& entry(const char* name, void (*cuda)(Call&), void (*vjp)(Backward&) = nullptr, uint32_t saves = 0,
                Precision autocast = Precision::inputs) {
    return enter({.name = name,
                  .family = Family::reduction,
                  .arity = 1,
                  .rule = rule<reduction>,
                  .cpu = kernel<reduction>,
                  .cuda = cuda,
                  .vjp = vjp,
                  .saves = saves,
                  .autocast = autocast});
}

void extreme_vjp(Backward& c) {
    c.give(0, [&] {
        const T hit = cast(equal(c.input(), restored(c.output(), c)), c.dtype());
        return restored(c.grad(), c) * (hit / sum(hit, c.params().a, true));
    });
}

const Op& sum_op = entry<Reduction::sum>(
    "sum", cuda::sum,
    [](Backward& c) { c.give(0, [&] { return expand(restored(c.grad(), c), c.shape()); }); }, 0,
    Precision::single);
const Op& max_op = entry<Reduction::max>("max", cuda::max, extreme_vjp, in0 | out0);
const Op& min_op = entry<Reduction::min>("min", cuda::min, extreme_vjp, in0 | out0);
const Op& any_op = entry<Reduction::any>("any", cuda::any);
const Op& all_op = entry<Reduction::all>("all", cuda::all);

/// Product of all elements but one, for each: products of those before and behind, so that zeros do no harm.
T prod_of_others(const T& x) {
    const int last = x->dims() - 1;
    const T one = ones(narrow(x, last, 0, 1)->shape(), x->dtype());
    const int64_t n = x->shape()[last];
    const auto before = [&](const T& y) {
        return run(
            op_named("cumprod"),
            [&] {
                Params p;
                p.mode = last;
                return p;
            }(),
            concat({one, narrow(y, last, 0, n - 1)}, last));
    };
    return before(x) * flip(before(flip(x, {last})), {last});
}

const Op& prod_op = entry<Reduction::prod>(
    "prod", cuda::prod,
    [](Backward& c) {
        c.give(0, [&]() -> T {
            const T x = c.input();
            if (x->size() == 0) return zeros(c.shape(), c.dtype());
            // Folded axes to the end and as one, and back.
            Dims order, folded;
            for (int i = 0; i < x->dims(); ++i) (c.params().a.contains(i) ? folded : order).push_back(i);
            Dims shape;
            for (int64_t axis : order) shape.push_back(x->shape()[int(axis)]);
            for (int64_t axis : folded) order.push_back(axis);
            shape.push_back(-1);
            const T moved = permute(x, order);
            T others = reshape(prod_of_others(reshape(moved, shape)), moved->shape());
            Dims back = order;
            for (int i = 0; i < order.size(); ++i) back[int(order[i])] = i;
            others = permute(others, back);
            return restored(c.grad(), c) * (is(others->dtype(), complexes) ? conj(others) : others);
        });
    },
    in0, Precision::single);

// --- scans: mode is the axis -----------------------------------------------------------------------------

/// Type that a scan accumulates elements of type S in. Totals of floats in float would collect the rounding
/// error of every step.
template <typename S>
using Accumulator = std::conditional_t<is_half<S> || is_real<S>, double,
                                       std::conditional_t<is_complex<S>, C128, Computed<S>>>;

template <typename S, typename E>
E add_running_sums(int64_t n, const S* from, S* to, E total) {
    for (int64_t k = 0; k < n; ++k) {
        total = E(total + cast_value<E>(from[k]));
        to[k] = cast_value<S>(total);
    }
    return total;
}

/// Running sums of neighbours. Four at a time: only one addition in four waits for the one before it.
template <typename S>
void running_sums(int64_t n, const S* from, S* to) {
    using E = Accumulator<S>;
    E total = E();
    int64_t k = 0;
    if constexpr (std::is_same_v<E, double>)
        for (; k + 4 <= n; k += 4) {
            const E a = cast_value<E>(from[k]), b = cast_value<E>(from[k + 1]);
            const E two = a + b, three = two + cast_value<E>(from[k + 2]);
            const E four = three + cast_value<E>(from[k + 3]);
            if (!std::isfinite(four)) [[unlikely]] {  // perhaps only without `total`
                total = add_running_sums(4, from + k, to + k, total);
                continue;
            }
            to[k] = cast_value<S>(total + a);
            to[k + 1] = cast_value<S>(total + two);
            to[k + 2] = cast_value<S>(total + three);
            total += four;
            to[k + 3] = cast_value<S>(total);
        }
    add_running_sums(n - k, from + k, to + k, total);
}

/// Running sums along the last axis.
void scan_rows(Call& call) {
    Tensor& out = *call.out[0];
    const T x = contiguous(cast(call.in[0], out.dtype()));
    const int64_t n = out.shape().back();
    visit(out.dtype(), [&]<typename S>(Tag<S>) {
        const S* const from = x->data<S>();
        S* const to = out.data<S>();
        parallel_for(out.size() / n, std::max<int64_t>(1, grain / n), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) running_sums(n, from + i * n, to + i * n);
        });
    });
}

template <bool product>
void scan_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const int axis = call.params.mode;
    if (out.size() == 0) return;
    if constexpr (!product)
        if (axis == out.dims() - 1) return scan_rows(call);
    copy_elements(call.input(), out);
    int64_t inner = 1;
    for (int i = axis + 1; i < out.dims(); ++i) inner *= out.shape()[i];
    const int64_t n = out.shape()[axis], outer = out.size() / (n * inner);
    visit(out.dtype(), [&]<typename S>(Tag<S>) {
        S* const data = out.data<S>();
        using E = Accumulator<S>;
        parallel_for(outer * inner, std::max<int64_t>(1, grain / n), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                S* const line = data + i / inner * n * inner + i % inner;
                E total = cast_value<E>(line[0]);
                for (int64_t k = 1; k < n; ++k) {
                    if constexpr (product)
                        total = E(total * cast_value<E>(line[k * inner]));
                    else
                        total = E(total + cast_value<E>(line[k * inner]));
                    line[k * inner] = cast_value<S>(total);
                }
            }
        });
    });
}

void scan_rule(Call& call) {
    const DType dtype = call.input().dtype();
    call.make(call.input().shape(), is(dtype, unsigneds)            ? DType::u64
                                    : is(dtype, signeds | booleans) ? DType::i64
                                                                    : dtype);
}

T scan(const Op& op, const T& x, int axis) {
    Params params;
    params.mode = axis;
    return run(op, params, x);
}

/// log(exp(x) + exp(y)) of the higher and the lower one; NaN goes through.
template <typename E>
E log_of_sum(E x, E y) {
    const E high = x > y ? x : y, low = x > y ? y : x;
    if (x != x || y != y) return x + y;
    return low == high && std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
}

void logcumsumexp_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const int axis = call.params.mode;
    copy_elements(call.input(), out);
    if (out.size() == 0) return;
    int64_t inner = 1;
    for (int i = axis + 1; i < out.dims(); ++i) inner *= out.shape()[i];
    const int64_t n = out.shape()[axis];
    visit(out.dtype(), [&]<typename S>(Tag<S>) {
        using E = Computed<S>;
        if constexpr (std::is_floating_point_v<E>) {
            S* const data = out.data<S>();
            parallel_for(out.size() / n, std::max<int64_t>(1, grain / (16 * n)),
                         [&](int64_t begin, int64_t end) {
                             for (int64_t i = begin; i < end; ++i) {
                                 S* const line = data + i / inner * n * inner + i % inner;
                                 double total = double(E(line[0]));
                                 for (int64_t k = 1; k < n; ++k) {
                                     total = log_of_sum(total, double(E(line[k * inner])));
                                     line[k * inner] = S(E(total));
                                 }
                             }
                         });
        }
    });
}

const Op& cumsum_op =
    enter({.name = "cumsum",
           .family = Family::scan,
           .arity = 1,
           .rule = scan_rule,
           .cpu = scan_kernel<false>,
           .cuda = cuda::cumsum,
           .vjp =
               [](Backward& c) {
                   const int axis = c.params().mode;
                   c.give(0, [&] { return flip(cumsum(flip(c.grad(), {axis}), axis), {axis}); });
               },
           .autocast = Precision::single});

/// out[i] = a[i] out[i - 1] + b[i], where the element before the first is zero.
void recurrence_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const int axis = call.params.mode;
    copy_elements(call.input(1), out);
    const T factors = contiguous(cast(call.in[0], out.dtype()));
    if (out.size() == 0) return;
    int64_t inner = 1;
    for (int i = axis + 1; i < out.dims(); ++i) inner *= out.shape()[i];
    const int64_t n = out.shape()[axis];
    visit(out.dtype(), [&]<typename S>(Tag<S>) {
        using E = Accumulator<S>;
        parallel_for(out.size() / n, std::max<int64_t>(1, grain / n), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t at = i / inner * n * inner + i % inner;
                S* const line = out.data<S>() + at;
                const S* const a = factors->data<S>() + at;
                E value = cast_value<E>(line[0]);
                for (int64_t k = 1; k < n; ++k) {
                    value = E(cast_value<E>(a[k * inner]) * value + cast_value<E>(line[k * inner]));
                    line[k * inner] = cast_value<S>(value);
                }
            }
        });
    });
}

T recurrence(const T& a, const T& b, int axis) {
    Params params;
    params.mode = axis;
    return run(op_named("linear_recurrence"), params, a, b);
}

/// The elements one place further along an axis (or back), and zeros or ones where none comes from.
T shifted(const T& x, int axis, bool back, double fill) {
    const int64_t n = x->shape()[axis];
    const T edge = copy(expand(like(x, fill), narrow(x, axis, 0, 1)->shape()));
    return back ? concat({narrow(x, axis, 1, n - 1), edge}, axis)
                : concat({edge, narrow(x, axis, 0, n - 1)}, axis);
}

/// out[i] = b[i] + a[i + 1] out[i + 1]
T reversed_recurrence(const T& a, const T& b, int axis) {
    const T next = shifted(a, axis, true, 0);
    return flip(recurrence(flip(next, {axis}), flip(b, {axis}), axis), {axis});
}

const Op& recurrence_op =
    enter({.name = "linear_recurrence",
           .family = Family::scan,
           .arity = 2,
           .types = inexact,
           .rule =
               [](Call& call) {
                   require_shape(call.input(0).shape() == call.input(1).shape(),
                                 "[linear_recurrence] shapes ", call.input(0).shape().words(), " and ",
                                 call.input(1).shape().words(), "; factors and terms need one shape");
                   call.make(call.input(1).shape(), promote(call.input(0).dtype(), call.input(1).dtype()));
               },
           .cpu = recurrence_kernel,
           .cuda = cuda::linear_recurrence,
           .vjp =
               [](Backward& c) {
                   if (c.output_shape().product() == 0)
                       return c.give(1, c.grad()), c.give(0, zeros(c.shape(0), c.dtype(0)));
                   const int axis = c.params().mode;
                   const bool has_parts = is(c.grad()->dtype(), complexes);
                   const T a = c.input(0), out = c.output();
                   const T g = reversed_recurrence(has_parts ? conj(a) : a, c.grad(), axis);
                   c.give(1, g);
                   c.give(0, [&] { return g * shifted(has_parts ? conj(out) : out, axis, false, 0); });
               },
           .saves = in0 | out0,
           .flops_per_element = 2});

/// exp(x[j] - out[j]) times the sum over i >= j of g[i] exp(out[j] - out[i]): no power is larger than 1.
T logcumsumexp_gradient(const T& g, const T& x, const T& out, int axis) {
    const T zero = like(g, 0), some = greater(out, like(g, -HUGE_VAL));
    const T level = where(some, out, zero);
    const T before = shifted(level, axis, false, 0), has_before = shifted(some, axis, false, 0);
    const T factors = where(has_before, exp(where(has_before, before - level, zero)), zero);
    return exp(x - level) * reversed_recurrence(factors, g, axis);
}

const Op& logcumsumexp_op =
    enter({.name = "logcumsumexp",
           .family = Family::scan,
           .arity = 1,
           .types = floats,
           .rule = [](Call& call) { call.make(call.input().shape(), call.input().dtype()); },
           .cpu = logcumsumexp_kernel,
           .cuda = cuda::logcumsumexp,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&]() -> T {
                       if (c.shape().product() == 0) return c.grad();
                       return logcumsumexp_gradient(c.grad(), c.input(), c.output(), c.params().mode);
                   });
               },
           .saves = in0 | out0,
           .flops_per_element = 20});

/// Sum over j >= i of g[j] * prod of x[0..j] without x[i]: the product before i times what a recurrence from
/// the end gives. Nothing is divided, so that zeros do no harm, to derivatives of it neither.
T cumprod_gradient(const T& g, const T& x, const T& out, int axis) {
    return shifted(out, axis, false, 1) * reversed_recurrence(x, g, axis);
}

const Op& cumprod_op = enter({.name = "cumprod",
                              .family = Family::scan,
                              .arity = 1,
                              .rule = scan_rule,
                              .cpu = scan_kernel<true>,
                              .cuda = cuda::cumprod,
                              .vjp =
                                  [](Backward& c) {
                                      c.give(0, [&]() -> T {
                                          if (c.shape().product() == 0) return c.grad();
                                          const bool has_parts = is(c.dtype(), complexes);
                                          const T x = has_parts ? conj(c.input()) : c.input();
                                          const T out = has_parts ? conj(c.output()) : c.output();
                                          return cumprod_gradient(c.grad(), x, out, c.params().mode);
                                      });
                                  },
                              .saves = in0 | out0,
                              .autocast = Precision::single});

}  // namespace

T sum(const T& x, const Dims& axes, bool keep) {
    Params params;
    params.a = axes_of(axes, x->dims(), "sum");
    params.flag = keep;
    return run(sum_op, params, x);
}

T max(const T& x, const Dims& axes, bool keep) {
    Params params;
    params.a = axes_of(axes, x->dims(), "max");
    params.flag = keep;
    return run(max_op, params, x);
}

T sum_to(const T& x, const Dims& shape) {
    if (x->shape() == shape) return x;
    if (x->size() == 1 && x->dims() <= shape.size()) return expand(x, shape);
    Dims axes;
    const int skip = x->dims() - shape.size();
    for (int i = 0; i < x->dims(); ++i)
        if (i < skip || (shape[i - skip] == 1 && x->shape()[i] != 1)) axes.push_back(i);
    const T summed = axes.empty() ? x : sum(x, axes, true);
    Dims reduced;
    for (int i = std::max(skip, 0); i < summed->dims(); ++i) reduced.push_back(summed->shape()[i]);
    const T result = reshape(summed, reduced);
    return result->shape() == shape ? result : expand(result, shape);
}

T cumsum(const T& x, int axis) { return scan(cumsum_op, x, axis_of(axis, x->dims(), "cumsum")); }

bool has_nan(const T& x) {
    const GradMode off(false);
    const T nan = isnan(x);
    Params params;
    for (int i = 0; i < x->dims(); ++i) params.a.push_back(i);
    return *to_device(run(any_op, params, nan), cpu)->data<bool>();
}

}  // namespace accelera::tensora
