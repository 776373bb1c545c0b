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

}  // namespace accelera::tensora::device
