#pragma once

/// Reading and writing at given places of contiguous tensors. Elements that are only moved are moved as
/// unsigned integers of their size.
#include "tensora/cuda/elements.cuh"

namespace accelera::tensora::device {

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
            out[(i / inner * extent + at[k]) * inner + i % inner] = values[(i / inner * n + k) * inner + i % inner];
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
