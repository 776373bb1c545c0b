// Entries of sorting and searching. All work along the last axis; the functions bring another one there.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tensora/base/interrupt.h"
#include "tensora/base/threads.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"

namespace accelera::tensora {

namespace {

template <typename K>
struct Item {
    K key;
    int64_t index;
};

/// Comparisons between two looks for an interrupt: about 10 ms of sorting.
constexpr int64_t comparisons_per_check = int64_t(1) << 20;

/// Sort the first `kept` items of a line into place; an interrupt ends it.
template <typename K>
void sort_items(std::vector<Item<K>>& items, bool descending, int64_t kept) {
    const auto numbers = std::stable_partition(items.begin(), items.end(),
                                               [](const Item<K>& item) { return !is_nan(item.key); });
    const auto order = [&](auto is_before) {
        if (kept >= int64_t(items.size()) / 2) return std::stable_sort(items.begin(), numbers, is_before);
        const auto middle = std::min(items.begin() + kept, numbers);
        std::partial_sort(items.begin(), middle, numbers, [&](const Item<K>& a, const Item<K>& b) {
            return is_before(a, b) || (!is_before(b, a) && a.index < b.index);
        });
    };
    const auto sort = [&](auto is_before) {
        if (int64_t(items.size()) < comparisons_per_check / 16) return order(is_before);
        int64_t comparisons = 0;
        order([&](const Item<K>& a, const Item<K>& b) {
            if (++comparisons % comparisons_per_check == 0) check_interrupt();
            return is_before(a, b);
        });
    };
    if (descending)
        sort([](const Item<K>& a, const Item<K>& b) { return is_less(b.key, a.key); });
    else
        sort([](const Item<K>& a, const Item<K>& b) { return is_less(a.key, b.key); });
}

/// Call `each(line, its elements)` for the lines of a contiguous tensor, on several threads.
template <typename E, typename Each>
void for_lines(const T& x, int64_t work_per_element, Each each) {
    const int64_t n = x->shape().back();
    const E* const data = x->data<E>();
    parallel_for(n ? x->size() / n : 0,
                 std::max<int64_t>(1, grain / std::max<int64_t>(1, n * work_per_element)),
                 [&](int64_t begin, int64_t end) {
                     for (int64_t line = begin; line < end; ++line) each(line, data + line * n);
                 });
}

void argsort_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    const int64_t n = x->shape().back(), kept = call.params.a[0];
    int64_t* const out = call.out[0]->data<int64_t>();
    std::optional<InterpreterReleased> released;  // a single line is sorted by one thread, this one
    if (x->size() > grain) released.emplace();
    visit(x->dtype(), [&]<typename E>(Tag<E>) {
        using K = Computed<E>;
        for_lines<E>(x, 16, [&](int64_t line, const E* elements) {
            std::vector<Item<K>> items(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; ++i) items[size_t(i)] = {K(elements[i]), i};
            sort_items(items, call.params.flag, kept);
            for (int64_t i = 0; i < kept; ++i) out[line * kept + i] = items[size_t(i)].index;
        });
    });
}

/// flag: descending, a: how many indices of each line are wanted.
const Op& argsort_op = enter({.name = "argsort",
                              .family = Family::search,
                              .arity = 1,
                              .rule =
                                  [](Call& call) {
                                      Dims shape = call.input().shape();
                                      shape.back() = call.params.a[0];
                                      call.make(shape, DType::i64);
                                  },
                              .cpu = argsort_kernel,
                              .cuda = cuda::argsort,
                              .flops_per_element = 16});

template <bool largest>
void extreme_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    const int64_t n = x->shape().back();
    int64_t* const out = call.out[0]->data<int64_t>();
    visit(x->dtype(), [&]<typename E>(Tag<E>) {
        using K = Computed<E>;
        for_lines<E>(x, 1, [&](int64_t line, const E* elements) {
            int64_t best = 0;
            K most = K(elements[0]);
            for (int64_t i = 1; i < n && !is_nan(most); ++i) {
                const K next = K(elements[i]);
                const bool is_next = largest ? is_less(most, next) : is_less(next, most);
                if (!is_next && !is_nan(next)) continue;
                best = i;
                most = next;
            }
            out[line] = best;
        });
    });
}

void extreme_rule(Call& call) {
    Dims shape = call.input().shape();
    require_shape(shape.back() > 0, "[", call.op.name, "] a tensor of shape ", shape.words(),
                  " has no element along the axis");
    shape.erase(shape.size() - 1);
    call.make(shape, DType::i64);
}

const Op& argmax_op = enter({.name = "argmax",
                             .family = Family::search,
                             .arity = 1,
                             .types = ordered,
                             .rule = extreme_rule,
                             .cpu = extreme_kernel<true>,
                             .cuda = cuda::argmax});
const Op& argmin_op = enter({.name = "argmin",
                             .family = Family::search,
                             .arity = 1,
                             .types = ordered,
                             .rule = extreme_rule,
                             .cpu = extreme_kernel<false>,
                             .cuda = cuda::argmin});

/// flag: the largest ones.
void running_kernel(Call& call) {
    const T x = contiguous(call.in[0]);
    const int64_t n = x->shape().back();
    int64_t* const out = call.out[0]->data<int64_t>();
    visit(x->dtype(), [&]<typename E>(Tag<E>) {
        using K = Computed<E>;
        for_lines<E>(x, 1, [&](int64_t line, const E* elements) {
            int64_t best = 0;
            for (int64_t i = 0; i < n; ++i) {
                const K most = K(elements[best]), next = K(elements[i]);
                const bool stays = call.params.flag ? is_less(next, most) : is_less(most, next);
                if (is_nan(next) || (!is_nan(most) && !stays)) best = i;
                out[line * n + i] = best;
            }
        });
    });
}

const Op& running_op = enter({.name = "running_extreme",
                              .family = Family::search,
                              .arity = 1,
                              .types = ordered,
                              .rule = [](Call& call) { call.make(call.input().shape(), DType::i64); },
                              .cpu = running_kernel,
                              .cuda = cuda::running_extreme});

void searchsorted_kernel(Call& call) {
    const DType dtype = promote(call.input(0).dtype(), call.input(1).dtype());
    const T sorted = contiguous(cast(call.in[0], dtype)), values = contiguous(cast(call.in[1], dtype));
    int64_t* const out = call.out[0]->data<int64_t>();
    visit(dtype, [&]<typename E>(Tag<E>) {
        using K = Computed<E>;
        const int64_t n = sorted->shape().back();
        const int64_t each =
            sorted->dims() > 1 ? std::max<int64_t>(1, values->shape().back()) : values->size();
        const E* const wanted = values->data<E>();
        const auto is_before = [](E a, E b) { return comes_before(K(a), K(b)); };
        parallel_for(values->size(), grain / 16, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const E* const begin = sorted->data<E>() + i / each * n;
                const E* const end = begin + n;
                out[i] = (call.params.flag ? std::upper_bound(begin, end, wanted[i], is_before)
                                           : std::lower_bound(begin, end, wanted[i], is_before)) -
                         begin;
            }
        });
    });
}

/// flag: behind equal elements.
const Op& searchsorted_op =
    enter({.name = "searchsorted",
           .family = Family::search,
           .arity = 2,
           .rule =
               [](Call& call) {
                   const Dims &sorted = call.input(0).shape(), &values = call.input(1).shape();
                   bool fits = sorted.size() == 1 || (sorted.size() > 1 && sorted.size() == values.size());
                   for (int i = 0; fits && i + 1 < sorted.size(); ++i) fits = sorted[i] == values[i];
                   require_shape(fits, "[searchsorted] sorted elements of shape ", sorted.words(),
                                 " for values of shape ", values.words(),
                                 "; give a vector, or one for each line of values");
                   call.make(call.input(1).shape(), DType::i64);
               },
           .cpu = searchsorted_kernel,
           .cuda = cuda::searchsorted,
           .flops_per_element = 16});

T extreme(const Op& op, const T& x, int axis, bool keep) {
    const int at = axis_of(axis, x->dims(), op.name);
    const T last = unsqueeze(run(op, no_params, transpose(x, at, -1)), -1);
    const T back = transpose(last, at, -1);
    return contiguous(keep ? back : squeeze(back, at));
}

}  // namespace

T argsort(const T& x, int axis, bool descending, std::optional<int64_t> kept) {
    const int at = axis_of(axis, x->dims(), "argsort");
    const int64_t n = x->shape()[at];
    Params params;
    params.flag = descending;
    params.a = {kept.value_or(n)};
    require_shape(params.a[0] >= 0 && params.a[0] <= n, "[topk] ", params.a[0], " elements of an axis with ",
                  n);
    return contiguous(transpose(run(argsort_op, params, transpose(x, at, -1)), at, -1));
}

T argmax(const T& x, int axis, bool keep) { return extreme(argmax_op, x, axis, keep); }
T argmin(const T& x, int axis, bool keep) { return extreme(argmin_op, x, axis, keep); }

T running_extreme(const T& x, int axis, bool largest) {
    const int at = axis_of(axis, x->dims(), "running_extreme");
    return contiguous(transpose(run(running_op, flagged(largest), transpose(x, at, -1)), at, -1));
}

T searchsorted(const T& sorted, const T& values, bool right) {
    Params params;
    params.flag = right;
    return run(searchsorted_op, params, sorted, values);
}

Unique unique(const T& x) {
    if (Capture::here()) Capture::here()->refuse_read(*x, "unique");
    const T flat = reshape(x, {-1});
    const T order = argsort(flat, 0, false, std::nullopt);
    const int64_t n = x->size();
    const int64_t* const at = order->data<int64_t>();
    std::vector<int64_t> starts;
    const T inverse = Tensor::empty(x->shape(), DType::i64);
    const T elements = contiguous(flat->detach());
    visit(x->dtype(), [&]<typename E>(Tag<E>) {
        const E* const data = elements->data<E>();
        for (int64_t i = 0; i < n; ++i) {
            if (i == 0 || Computed<E>(data[at[i]]) != Computed<E>(data[at[i - 1]])) starts.push_back(i);
            inverse->data<int64_t>()[at[i]] = int64_t(starts.size()) - 1;
        }
    });
    const int64_t found = int64_t(starts.size());
    const T indices = Tensor::empty({found}, DType::i64), counts = Tensor::empty({found}, DType::i64);
    for (int64_t i = 0; i < found; ++i) {
        indices->data<int64_t>()[i] = at[starts[size_t(i)]];
        counts->data<int64_t>()[i] = (i + 1 < found ? starts[size_t(i) + 1] : n) - starts[size_t(i)];
    }
    return {take(flat, indices, 0), indices, inverse, counts};
}

}  // namespace accelera::tensora
