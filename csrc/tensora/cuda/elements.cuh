#pragma once

/// Elementwise programs on the device: the formulas that the CPU's loops have, and where elements lie. The
/// body of a program is put together from these when it first runs.
#include "tensora/kernels/scalar.h"

namespace accelera::tensora::device {

/// A formula of stored values, as it is stored; halves are computed as floats.
template <typename F, typename S, typename... Es>
TENSORA_INLINE auto value(Es... stored) {
    using E = Computed<S>;
    using R = decltype(F::template of<S, E>(E(stored)...));
    return math::conditional_t<math::is_same_v<R, E>, S, R>(F::template of<S, E>(E(stored)...));
}

/// Number of the thread among all of the launch, and how many these are.
TENSORA_INLINE int64_t first_element() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
TENSORA_INLINE int64_t all_threads() { return int64_t(gridDim.x) * blockDim.x; }

template <int rank>
struct Extents {
    int64_t of[rank];
    __device__ int64_t product() const {
        int64_t result = 1;
        for (int i = 0; i < rank; ++i) result *= of[i];
        return result;
    }
};
/// Distances of neighbours, in elements.
template <int rank>
struct Steps {
    int64_t of[rank];
};

/// Index on each axis of the i-th element. `Int` is as narrow as the number of elements allows: 64-bit
/// divisions are slow.
template <int rank, typename Int>
struct Place {
    Int digit[rank];
    TENSORA_INLINE Place(const Extents<rank>& shape, Int i) {
        TENSORA_UNROLL
        for (int k = rank - 1; k > 0; --k) {
            const Int extent = Int(shape.of[k]);
            digit[k] = i % extent;
            i /= extent;
        }
        digit[0] = i;
    }
    TENSORA_INLINE int64_t in(const Steps<rank>& steps) const {
        int64_t at = 0;
        TENSORA_UNROLL
        for (int k = 0; k < rank; ++k) at += int64_t(digit[k]) * steps.of[k];
        return at;
    }
};
template <typename Int>
struct Place<0, Int> {
    TENSORA_INLINE Place(const Extents<1>&, Int) {}
    TENSORA_INLINE int64_t in(const Steps<1>&) const { return 0; }
};

/// One number among the arguments of a kernel.
struct alignas(8) Number {
    unsigned char bytes[16];
    template <typename S>
    TENSORA_INLINE S as() const {
        S result;
        __builtin_memcpy(&result, bytes, sizeof(S));
        return result;
    }
};

// --- how two values become one

template <typename A>
struct Sum {
    static TENSORA_INLINE A start() { return A(0); }
    static TENSORA_INLINE A join(A a, A b) { return A(a + b); }
};
template <typename A>
struct Product {
    static TENSORA_INLINE A start() { return A(1); }
    static TENSORA_INLINE A join(A a, A b) { return A(a * b); }
};
template <typename A>
TENSORA_INLINE A lowest() {
    if constexpr (math::is_floating_point_v<A>)
        return -math::numeric_limits<A>::infinity();
    else if constexpr (math::is_signed_v<A>)
        return A(A(1) << (8 * sizeof(A) - 1));
    else
        return A(0);
}
template <typename A>
struct Largest {
    static TENSORA_INLINE A start() { return lowest<A>(); }
    static TENSORA_INLINE A join(A a, A b) { return (a > b) | (a != a) ? a : b; }
};
template <typename A>
struct Smallest {
    static TENSORA_INLINE A start() {
        if constexpr (math::is_floating_point_v<A>)
            return -lowest<A>();
        else
            return A(~lowest<A>());
    }
    static TENSORA_INLINE A join(A a, A b) { return (a < b) | (a != a) ? a : b; }
};
template <>
struct Smallest<Bool> {
    static TENSORA_INLINE Bool start() { return true; }
    static TENSORA_INLINE Bool join(Bool a, Bool b) { return a && b; }
};
template <typename A>
struct Any {
    static TENSORA_INLINE A start() { return false; }
    static TENSORA_INLINE A join(A a, A b) { return a || b; }
};
template <typename A>
struct All {
    static TENSORA_INLINE A start() { return true; }
    static TENSORA_INLINE A join(A a, A b) { return a && b; }
};

// --- reading and writing at given places of contiguous tensors
// Elements that are only moved are moved as unsigned integers of their size.

struct alignas(16) Wide {
    uint64_t words[2];
};

/// out[i, k, j] = x[i, at[k], j], for k below n and j below inner.
template <typename S>
TENSORA_INLINE void take_slices(int64_t size, int64_t extent, int64_t n, int64_t inner, const S* x,
                                const int64_t* at, S* out) {
    for (int64_t i = first_element(); i < size; i += all_threads()) {
        const int64_t j = i % inner, k = i / inner % n, outer = i / inner / n;
        out[i] = x[(outer * extent + at[k]) * inner + j];
    }
}

/// out[i, at[k], j] = values[i, k, j]: of several at one place the last, as a thread writes them in order.
template <typename S>
TENSORA_INLINE void put_slices(int64_t outer, int64_t extent, int64_t n, int64_t inner, const S* values,
                               const int64_t* at, S* out) {
    for (int64_t i = first_element(); i < outer * inner; i += all_threads())
        for (int64_t k = 0; k < n; ++k)
            out[(i / inner * extent + at[k]) * inner + i % inner] =
                values[(i / inner * n + k) * inner + i % inner];
}

/// out[i, at[k], j] += values[i, k, j], in the order of k, so that the sums are the same in every run.
/// `order` are the places sorted, stably, and `starts` where a run of equal ones begins in it.
template <typename S>
TENSORA_INLINE void add_slices(int64_t outer, int64_t extent, int64_t n, int64_t inner, int64_t runs,
                               const S* values, const int64_t* at, const int64_t* order,
                               const int64_t* starts, S* out) {
    using E = Computed<S>;
    for (int64_t i = first_element(); i < outer * runs * inner; i += all_threads()) {
        const int64_t j = i % inner, run = i / inner % runs, row = i / inner / runs;
        const int64_t begin = starts[run], end = run + 1 < runs ? starts[run + 1] : n;
        S& to = out[(row * extent + at[order[begin]]) * inner + j];
        E sum = E(to);
        for (int64_t k = begin; k < end; ++k) sum = E(sum + E(values[(row * n + order[k]) * inner + j]));
        to = S(sum);
    }
}

/// out[.., i, ..] = x[.., at[.., i, ..], ..] with the index's shape; extents of x may be larger.
template <typename S, int rank>
TENSORA_INLINE void take_along(int64_t size, const Extents<rank>& shape, const Steps<rank>& x_steps,
                               int64_t axis_step, const S* x, const int64_t* at, S* out) {
    for (int64_t i = first_element(); i < size; i += all_threads())
        out[i] = x[Place<rank, int64_t>(shape, i).in(x_steps) + at[i] * axis_step];
}

/// Join values[.., i, ..] to out[.., at[.., i, ..], ..], a thread for each line of n values along the axis,
/// so that sums are the same in every run. `lines` are the extents of the index without the axis.
template <template <typename> typename Join, typename S, int rank>
TENSORA_INLINE void join_along(const Extents<rank>& lines, const Steps<rank>& out_steps,
                               const Steps<rank>& value_steps, int64_t n, int64_t out_step,
                               int64_t value_step, const S* values, const int64_t* at, S* out) {
    using E = Computed<S>;
    for (int64_t i = first_element(); i < lines.product(); i += all_threads()) {
        const Place<rank, int64_t> place(lines, i);
        S* const to = out + place.in(out_steps);
        const int64_t from = place.in(value_steps);
        for (int64_t k = 0; k < n; ++k) {
            S& joined = to[at[from + k * value_step] * out_step];
            joined = S(Join<E>::join(E(joined), E(values[from + k * value_step])));
        }
    }
}

// --- sorting and searching along the last axis

/// How many of n sorted elements, read by `get(i)`, come before: `before(element)` is true, then false.
template <typename Get, typename Before>
TENSORA_INLINE int64_t count_before(int64_t n, Get get, Before before) {
    int64_t low = 0;
    while (low < n) {
        const int64_t middle = low + (n - low) / 2;
        if (before(get(middle)))
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/// Place among the n sorted elements of its line of each value; a line is for `each` values.
template <typename S>
TENSORA_INLINE void search_sorted(int64_t size, int64_t n, int64_t each, bool right, const S* sorted,
                                  const S* values, int64_t* out) {
    using E = Computed<S>;
    for (int64_t i = first_element(); i < size; i += all_threads()) {
        const S* const line = sorted + i / each * n;
        const E value = E(values[i]);
        out[i] = count_before(
            n, [&](int64_t k) { return E(line[k]); },
            [&](E one) { return right ? !comes_before(value, one) : comes_before(one, value); });
    }
}

/// Order of a sort: NaN behind all others in both directions.
template <bool descending, typename E>
TENSORA_INLINE bool goes_before(E a, E b) {
    if constexpr (!descending)
        return comes_before(a, b);
    else
        return is_nan(a) ? false : is_nan(b) || is_less(b, a);
}

/// One pass of a stable merge sort of lines of n elements, by their indices: runs of `width` become runs of
/// twice that. Each thread finds how many elements of the other run go before its own. No `order`: as they
/// lie.
template <typename S, bool descending>
TENSORA_INLINE void merge_runs(int64_t size, int64_t n, int64_t width, const S* x, const int64_t* order,
                               int64_t* out) {
    using E = Computed<S>;
    for (int64_t i = first_element(); i < size; i += all_threads()) {
        const int64_t line = i / n * n, at = i - line, begin = at / (2 * width) * (2 * width);
        const int64_t middle = begin + width < n ? begin + width : n;
        const int64_t end = middle + width < n ? middle + width : n;
        const bool is_left = at < middle;
        const auto element = [&](int64_t k) { return E(x[line + (order ? order[line + k] : k)]); };
        const E mine = element(at);
        const int64_t other = is_left ? middle : begin, others = is_left ? end - middle : middle - begin;
        const int64_t before = count_before(
            others, [&](int64_t k) { return element(other + k); },
            [&](E one) {
                return is_left ? goes_before<descending>(one, mine) : !goes_before<descending>(mine, one);
            });
        out[line + begin + (at - (is_left ? begin : middle)) + before] = order ? order[i] : at;
    }
}

// --- pooling of images (planes, three extents)

template <typename S>
struct Pool {
    int64_t planes;
    int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
    bool shares;         ///< each window has an equal share of the image instead
    bool count_padding;  ///< of means
    double divisor;      ///< of means; 0: how many elements a window has
    const S* x;
    S* result;
    int64_t* places;

    __device__ int64_t in_size() const { return in[0] * in[1] * in[2]; }
    __device__ int64_t out_size() const { return out[0] * out[1] * out[2]; }
};

/// One window along one axis: `first`, `first` + `step`, ... below `last`, all of them inside of the image.
struct Span {
    int64_t first, last, step, extent;

    template <typename S>
    TENSORA_INLINE Span(const Pool<S>& pool, int i, int64_t o) {
        if (pool.shares) {
            first = o * pool.in[i] / pool.out[i];
            last = ((o + 1) * pool.in[i] + pool.out[i] - 1) / pool.out[i];
            step = 1;
            extent = last - first;
            return;
        }
        step = pool.dilation[i];
        const int64_t begin = o * pool.stride[i] - pool.padding[i];
        const int64_t end = begin + step * (pool.kernel[i] - 1) + 1, missing = begin < 0 ? -begin : 0;
        first = begin + (missing + step - 1) / step * step;
        last = end < pool.in[i] ? end : pool.in[i];
        const int64_t padded = pool.in[i] + pool.padding[i];
        extent = (end < padded ? end : padded) - begin;
    }
    TENSORA_INLINE bool has(int64_t at) const { return at >= first && at < last && (at - first) % step == 0; }
    TENSORA_INLINE int64_t count(bool padding) const {
        return padding ? extent : last > first ? last - first : 0;
    }
};

/// The window of an output, by its number among those of a plane.
template <typename S>
struct Window {
    const Pool<S>& pool;
    Span depth, row, column;

    TENSORA_INLINE Window(const Pool<S>& pool, int64_t d, int64_t r, int64_t c)
        : pool(pool), depth(pool, 0, d), row(pool, 1, r), column(pool, 2, c) {}
    TENSORA_INLINE Window(const Pool<S>& pool, int64_t o)
        : Window(pool, o / (pool.out[1] * pool.out[2]), o / pool.out[2] % pool.out[1], o % pool.out[2]) {}

    TENSORA_INLINE int64_t first() const {
        return (depth.first * pool.in[1] + row.first) * pool.in[2] + column.first;
    }
    /// Call `function(place)` for each element.
    template <typename Function>
    TENSORA_INLINE void each(Function function) const {
        for (int64_t d = depth.first; d < depth.last; d += depth.step)
            for (int64_t r = row.first; r < row.last; r += row.step)
                for (int64_t c = column.first; c < column.last; c += column.step)
                    function((d * pool.in[1] + r) * pool.in[2] + c);
    }
    TENSORA_INLINE bool has(const int64_t* at) const {
        return depth.has(at[0]) && row.has(at[1]) && column.has(at[2]);
    }
    /// What its sum is multiplied with for a mean.
    TENSORA_INLINE double share() const {
        const bool padding = pool.count_padding;
        const int64_t count = depth.count(padding) * row.count(padding) * column.count(padding);
        return 1 / (pool.divisor != 0 ? pool.divisor : double(count));
    }
};

/// The largest element of each window, and its place.
template <typename S>
TENSORA_INLINE void max_pool(const Pool<S>& pool) {
    using E = Computed<S>;
    const int64_t size = pool.out_size();
    for (int64_t i = first_element(); i < pool.planes * size; i += all_threads()) {
        const Window<S> window(pool, i % size);
        const S* const x = pool.x + i / size * pool.in_size();
        E most = -math::numeric_limits<E>::infinity();
        int64_t place = window.first();
        window.each([&](int64_t at) {
            const E value = E(x[at]);
            if ((value > most) | (value != value)) most = value, place = at;
        });
        pool.result[i] = S(most);
        pool.places[i] = place;
    }
}

template <typename S>
TENSORA_INLINE void avg_pool(const Pool<S>& pool) {
    using E = Computed<S>;
    const int64_t size = pool.out_size();
    for (int64_t i = first_element(); i < pool.planes * size; i += all_threads()) {
        const Window<S> window(pool, i % size);
        const S* const x = pool.x + i / size * pool.in_size();
        double sum = 0;
        window.each([&](int64_t at) { sum += double(E(x[at])); });
        pool.result[i] = S(E(sum * window.share()));
    }
}

/// First and last (exclusive) window along an axis that may have a place in it.
template <typename S>
TENSORA_INLINE void windows_near(const Pool<S>& pool, int i, int64_t at, int64_t& first, int64_t& last) {
    const int64_t reach = pool.dilation[i] * (pool.kernel[i] - 1);
    const int64_t low = at + pool.padding[i] - reach;
    first = pool.shares ? at * pool.out[i] / pool.in[i] - 1 : low <= 0 ? 0 : low / pool.stride[i];
    last =
        pool.shares ? (at + 1) * pool.out[i] / pool.in[i] + 2 : (at + pool.padding[i]) / pool.stride[i] + 1;
    first = first < 0 ? 0 : first;
    last = last > pool.out[i] ? pool.out[i] : last;
}

/// Gradient of the input of `avg_pool`; x is that of its result.
template <typename S>
TENSORA_INLINE void avg_pool_back(const Pool<S>& pool) {
    using E = Computed<S>;
    const int64_t size = pool.in_size();
    for (int64_t i = first_element(); i < pool.planes * size; i += all_threads()) {
        const int64_t at[] = {i % size / (pool.in[1] * pool.in[2]), i / pool.in[2] % pool.in[1],
                              i % pool.in[2]};
        int64_t first[3], last[3];
        for (int k = 0; k < 3; ++k) windows_near(pool, k, at[k], first[k], last[k]);
        const S* const y = pool.x + i / size * pool.out_size();
        E sum(0);
        for (int64_t d = first[0]; d < last[0]; ++d)
            for (int64_t r = first[1]; r < last[1]; ++r)
                for (int64_t c = first[2]; c < last[2]; ++c) {
                    const Window<S> window(pool, d, r, c);
                    if (!window.has(at)) continue;
                    const E from = E(y[(d * pool.out[1] + r) * pool.out[2] + c]);
                    sum += E(double(from) * window.share());
                }
        pool.result[i] = S(sum);
    }
}

// --- convolution of images (images, channels, three extents)

/// Channels are those of one group. `first` and `second` are the inputs of the operation.
template <typename S>
struct Convolution {
    int64_t images, groups, in_channels, out_channels;
    int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
    const S *first, *second, *bias;
    S* result;

    __device__ int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
    __device__ int64_t in_size() const { return in[0] * in[1] * in[2]; }
    __device__ int64_t out_size() const { return out[0] * out[1] * out[2]; }
};

/// The three parts of a place among so many.
struct Triple {
    int64_t at[3];
    TENSORA_INLINE Triple(const int64_t* extents, int64_t i) {
        at[2] = i % extents[2];
        at[1] = i / extents[2] % extents[1];
        at[0] = i / extents[2] / extents[1];
    }
};

/// Place in the source that an output reads by a tap of the kernel; -1: in the padding.
template <typename S>
TENSORA_INLINE int64_t place_read(const Convolution<S>& c, const Triple& out, const Triple& tap) {
    int64_t place = 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t at = out.at[i] * c.stride[i] + tap.at[i] * c.dilation[i] - c.padding[i];
        if (at < 0 || at >= c.in[i]) return -1;
        place = place * c.in[i] + at;
    }
    return place;
}

/// The output that reads a place by a tap; -1: none does.
template <typename S>
TENSORA_INLINE int64_t reader_of(const Convolution<S>& c, const Triple& place, const Triple& tap) {
    int64_t out = 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t reach = place.at[i] + c.padding[i] - tap.at[i] * c.dilation[i];
        if (reach < 0 || reach % c.stride[i] || reach / c.stride[i] >= c.out[i]) return -1;
        out = out * c.out[i] + reach / c.stride[i];
    }
    return out;
}

template <typename S>
TENSORA_INLINE void convolution(const Convolution<S>& c) {
    using E = Computed<S>;
    const int64_t size = c.out_size(), channels = c.groups * c.out_channels, taps = c.kernel_size();
    for (int64_t i = first_element(); i < c.images * channels * size; i += all_threads()) {
        const int64_t channel = i / size % channels, image = i / size / channels;
        const Triple out(c.out, i % size);
        const S* const x =
            c.first + (image * c.groups + channel / c.out_channels) * c.in_channels * c.in_size();
        const S* const w = c.second + channel * c.in_channels * taps;
        E sum = c.bias ? E(c.bias[channel]) : E(0);
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t place = place_read(c, out, Triple(c.kernel, tap));
            if (place < 0) continue;
            for (int64_t k = 0; k < c.in_channels; ++k)
                sum += E(x[k * c.in_size() + place]) * E(w[k * taps + tap]);
        }
        c.result[i] = S(sum);
    }
}

template <typename S>
TENSORA_INLINE void convolution_input(const Convolution<S>& c) {
    using E = Computed<S>;
    const int64_t size = c.in_size(), channels = c.groups * c.in_channels, taps = c.kernel_size();
    for (int64_t i = first_element(); i < c.images * channels * size; i += all_threads()) {
        const int64_t channel = i / size % channels, image = i / size / channels,
                      group = channel / c.in_channels;
        const Triple place(c.in, i % size);
        const S* const y = c.first + (image * c.groups + group) * c.out_channels * c.out_size();
        const S* const w =
            c.second + (group * c.out_channels * c.in_channels + channel % c.in_channels) * taps;
        E sum(0);
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t out = reader_of(c, place, Triple(c.kernel, tap));
            if (out < 0) continue;
            for (int64_t k = 0; k < c.out_channels; ++k)
                sum += E(y[k * c.out_size() + out]) * E(w[k * c.in_channels * taps + tap]);
        }
        c.result[i] = S(sum);
    }
}

// --- windows as columns; `first` is the input, with an image for each plane

/// result[plane, tap, o]: what the window o reads by a tap.
template <typename S>
TENSORA_INLINE void unfold_windows(const Convolution<S>& c) {
    const int64_t size = c.out_size(), taps = c.kernel_size();
    for (int64_t i = first_element(); i < c.images * taps * size; i += all_threads()) {
        const int64_t place = place_read(c, Triple(c.out, i % size), Triple(c.kernel, i / size % taps));
        c.result[i] = place < 0 ? S(Computed<S>(0)) : c.first[i / size / taps * c.in_size() + place];
    }
}

/// Sum of all that windows read at a place.
template <typename S>
TENSORA_INLINE void fold_windows(const Convolution<S>& c) {
    using E = Computed<S>;
    const int64_t size = c.in_size(), taps = c.kernel_size();
    for (int64_t i = first_element(); i < c.images * size; i += all_threads()) {
        const Triple place(c.in, i % size);
        E sum(0);
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t out = reader_of(c, place, Triple(c.kernel, tap));
            if (out >= 0) sum += E(c.first[(i / size * taps + tap) * c.out_size() + out]);
        }
        c.result[i] = S(sum);
    }
}

}  // namespace accelera::tensora::device
