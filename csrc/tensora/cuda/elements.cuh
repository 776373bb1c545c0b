#pragma once

/// Elementwise programs on the device: the formulas that the CPU's loops have, and where elements lie. The
/// body of a program is put together from these when it first runs.
#include "tensora/kernels/scalar.h"

namespace accelera::tensora::device {

#define FORMULA(name, inputs, types, ...)                          \
    struct name##_formula {                                        \
        template <typename S, typename E>                          \
        static TENSORA_INLINE auto of(E x, E y = E(), E z = E()) { \
            (void)y, (void)z;                                      \
            return __VA_ARGS__;                                    \
        }                                                          \
    };
#include "tensora/kernels/formulas.def"
#undef FORMULA

/// A formula of stored values, as it is stored; halves are computed as floats.
template <typename F, typename S, typename... Es>
TENSORA_INLINE auto value(Es... stored) {
    using E = Computed<S>;
    const auto result = F::template of<S, E>(E(stored)...);
    using R = math::conditional_t<true, decltype(F::template of<S, E>(E(stored)...)), E>;
    if constexpr (math::is_same_v<R, E>)
        return S(result);
    else
        return result;
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

/// out[.., at[.., i, ..], ..] += values[.., i, ..], a thread for each line of n values along the axis, so
/// that sums are the same in every run. `lines` are the extents of the index without the axis.
template <typename S, int rank>
TENSORA_INLINE void add_along(const Extents<rank>& lines, const Steps<rank>& out_steps,
                              const Steps<rank>& value_steps, int64_t n, int64_t out_step, int64_t value_step,
                              const S* values, const int64_t* at, S* out) {
    using E = Computed<S>;
    for (int64_t i = first_element(); i < lines.product(); i += all_threads()) {
        const Place<rank, int64_t> place(lines, i);
        S* const to = out + place.in(out_steps);
        const int64_t from = place.in(value_steps);
        for (int64_t k = 0; k < n; ++k) {
            S& sum = to[at[from + k * value_step] * out_step];
            sum = S(E(E(sum) + E(values[from + k * value_step])));
        }
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

/// The largest element of each window, and its place.
template <typename S>
TENSORA_INLINE void max_pool(const Pool<S>& pool) {
    using E = Computed<S>;
    const int64_t size = pool.out_size();
    for (int64_t i = first_element(); i < pool.planes * size; i += all_threads()) {
        const Span depth(pool, 0, i % size / (pool.out[1] * pool.out[2]));
        const Span row(pool, 1, i / pool.out[2] % pool.out[1]), column(pool, 2, i % pool.out[2]);
        const S* const x = pool.x + i / size * pool.in_size();
        E most = -math::numeric_limits<E>::infinity();
        int64_t place = (depth.first * pool.in[1] + row.first) * pool.in[2] + column.first;
        for (int64_t d = depth.first; d < depth.last; d += depth.step)
            for (int64_t r = row.first; r < row.last; r += row.step)
                for (int64_t c = column.first; c < column.last; c += column.step) {
                    const int64_t at = (d * pool.in[1] + r) * pool.in[2] + c;
                    const E value = E(x[at]);
                    if ((value > most) | (value != value)) most = value, place = at;
                }
        pool.result[i] = S(most);
        pool.places[i] = place;
    }
}

template <typename S>
TENSORA_INLINE double share_of(const Pool<S>& pool, const Span& depth, const Span& row, const Span& column) {
    const bool padding = pool.count_padding;
    return 1 / (pool.divisor != 0
                    ? pool.divisor
                    : double(depth.count(padding) * row.count(padding) * column.count(padding)));
}

template <typename S>
TENSORA_INLINE void avg_pool(const Pool<S>& pool) {
    using E = Computed<S>;
    const int64_t size = pool.out_size();
    for (int64_t i = first_element(); i < pool.planes * size; i += all_threads()) {
        const Span depth(pool, 0, i % size / (pool.out[1] * pool.out[2]));
        const Span row(pool, 1, i / pool.out[2] % pool.out[1]), column(pool, 2, i % pool.out[2]);
        const S* const x = pool.x + i / size * pool.in_size();
        double sum = 0;
        for (int64_t d = depth.first; d < depth.last; d += depth.step)
            for (int64_t r = row.first; r < row.last; r += row.step)
                for (int64_t c = column.first; c < column.last; c += column.step)
                    sum += double(E(x[(d * pool.in[1] + r) * pool.in[2] + c]));
        pool.result[i] = S(E(sum * share_of(pool, depth, row, column)));
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
        for (int64_t d = first[0]; d < last[0]; ++d) {
            const Span depth(pool, 0, d);
            for (int64_t r = first[1]; r < last[1]; ++r) {
                const Span row(pool, 1, r);
                for (int64_t c = first[2]; c < last[2]; ++c) {
                    const Span column(pool, 2, c);
                    if (!depth.has(at[0]) || !row.has(at[1]) || !column.has(at[2])) continue;
                    sum += E(double(E(y[(d * pool.out[1] + r) * pool.out[2] + c])) *
                             share_of(pool, depth, row, column));
                }
            }
        }
        pool.result[i] = S(sum);
    }
}

}  // namespace accelera::tensora::device
