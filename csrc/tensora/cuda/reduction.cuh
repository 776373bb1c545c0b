#pragma once

/// Reductions. Which elements a thread and a block fold depends on nothing but the shape: results are the same
/// in every run.
#include "tensora/cuda/elements.cuh"

namespace accelera::tensora::device {

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
struct Smallest<bool> {
    static TENSORA_INLINE bool start() { return true; }
    static TENSORA_INLINE bool join(bool a, bool b) { return a && b; }
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

/// The value of the block's threads together, in each of them. Blocks have at most 256 threads, a power of
/// two of them.
template <typename Join, typename A>
TENSORA_INLINE A over_block(A mine) {
    __shared__ __align__(16) unsigned char room[256 * sizeof(A)];
    A* const parts = reinterpret_cast<A*>(room);
    __syncthreads();
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] = Join::join(parts[threadIdx.x], parts[threadIdx.x + half]);
        __syncthreads();
    }
    return parts[0];
}

/// `outputs` results, each of `folded` elements of x in `parts` pieces; the accumulators of the pieces go to
/// out[result * parts + piece].
template <int kept, int rank>
struct Reduction {
    int64_t outputs, folded, parts;
    Extents<kept> kept_shape;
    Steps<kept> kept_steps;
    Extents<rank> folded_shape;
    Steps<rank> folded_steps;
    const void* x;
    void* out;
};

/// A block for each piece: elements of a result lie side by side.
template <typename Join, typename S, typename A, typename O, int kept, int rank>
TENSORA_INLINE void reduce_by_blocks(const Reduction<kept, rank>& job) {
    const int64_t length = (job.folded + job.parts - 1) / job.parts;
    for (int64_t i = blockIdx.x; i < job.outputs * job.parts; i += gridDim.x) {
        const int64_t begin = i % job.parts * length;
        const int64_t end = begin + length < job.folded ? begin + length : job.folded;
        const S* const x = static_cast<const S*>(job.x) +
                           Place<kept, int64_t>(job.kept_shape, i / job.parts).in(job.kept_steps);
        A mine = Join::start();
        for (int64_t k = begin + threadIdx.x; k < end; k += blockDim.x)
            mine = Join::join(mine, cast_value<A>(x[Place<rank, int64_t>(job.folded_shape, k).in(job.folded_steps)]));
        mine = over_block<Join>(mine);
        if (threadIdx.x == 0) static_cast<O*>(job.out)[i] = cast_value<O>(mine);
    }
}

/// A thread for each piece: neighbouring results lie side by side, or have few elements.
template <typename Join, typename S, typename A, typename O, int kept, int rank>
TENSORA_INLINE void reduce_by_threads(const Reduction<kept, rank>& job) {
    const int64_t length = (job.folded + job.parts - 1) / job.parts;
    for (int64_t i = first_element(); i < job.outputs * job.parts; i += all_threads()) {
        const int64_t result = i % job.outputs, part = i / job.outputs;
        const int64_t begin = part * length;
        const int64_t end = begin + length < job.folded ? begin + length : job.folded;
        const S* const x =
            static_cast<const S*>(job.x) + Place<kept, int64_t>(job.kept_shape, result).in(job.kept_steps);
        A mine = Join::start();
        for (int64_t k = begin; k < end; ++k)
            mine = Join::join(mine, cast_value<A>(x[Place<rank, int64_t>(job.folded_shape, k).in(job.folded_steps)]));
        static_cast<O*>(job.out)[result * job.parts + part] = cast_value<O>(mine);
    }
}

/// A value and where it was found; of equal ones the first.
template <typename A>
struct Found {
    A value;
    int64_t at;
};
template <typename A, bool largest>
struct Extreme {
    static TENSORA_INLINE Found<A> join(Found<A> a, Found<A> b) {
        if (b.at < 0) return a;
        if (a.at < 0) return b;
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        const bool better = a_nan || b_nan ? b_nan && (!a_nan || b.at < a.at)
                            : b.value == a.value ? b.at < a.at
                            : largest            ? b.value > a.value
                                                 : b.value < a.value;
        return better ? b : a;
    }
};

/// Position of the largest (or smallest) of n elements, `step` apart, of each of `outer` x `inner` lines.
template <typename S, bool largest>
TENSORA_INLINE void find_extremes(int64_t outer, int64_t n, int64_t inner, const S* x, int64_t* out) {
    using A = Computed<S>;
    for (int64_t i = blockIdx.x; i < outer * inner; i += gridDim.x) {
        const S* const line = x + i / inner * n * inner + i % inner;
        Found<A> mine{A(0), -1};
        for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
            mine = Extreme<A, largest>::join(mine, {A(line[k * inner]), k});
        mine = over_block<Extreme<A, largest>>(mine);
        if (threadIdx.x == 0) out[i] = mine.at;
    }
}

/// Running sums (products ...) of n elements, `inner` apart, of each of `outer` x `inner` lines: the threads
/// of a block take a run of neighbours each.
template <typename Join, typename S, typename A, typename O>
TENSORA_INLINE void scan_lines(int64_t outer, int64_t n, int64_t inner, const S* x, O* out) {
    __shared__ __align__(16) unsigned char room[256 * sizeof(A)];
    A* const totals = reinterpret_cast<A*>(room);
    for (int64_t i = blockIdx.x; i < outer * inner; i += gridDim.x) {
        const int64_t base = i / inner * n * inner + i % inner;
        const int64_t length = (n + blockDim.x - 1) / blockDim.x;
        const int64_t begin = threadIdx.x * length, end = begin + length < n ? begin + length : n;
        A mine = Join::start();
        for (int64_t k = begin; k < end; ++k) mine = Join::join(mine, cast_value<A>(x[base + k * inner]));
        __syncthreads();
        totals[threadIdx.x] = mine;
        __syncthreads();
        for (unsigned step = 1; step < blockDim.x; step *= 2) {
            const A before = threadIdx.x >= step ? totals[threadIdx.x - step] : Join::start();
            __syncthreads();
            totals[threadIdx.x] = Join::join(before, totals[threadIdx.x]);
            __syncthreads();
        }
        A sum = threadIdx.x > 0 ? totals[threadIdx.x - 1] : Join::start();
        for (int64_t k = begin; k < end; ++k) {
            sum = Join::join(sum, cast_value<A>(x[base + k * inner]));
            out[base + k * inner] = cast_value<O>(sum);
        }
    }
}

}  // namespace accelera::tensora::device
