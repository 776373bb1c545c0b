#pragma once

/// Reductions, fused operations on rows, and steps of optimizers. Which elements a thread and a block fold
/// depends on nothing but the shape: results are the same in every run.
#include "tensora/cuda/elements.cuh"

namespace accelera::tensora::device {

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
        if (threadIdx.x < half)
            parts[threadIdx.x] = Join::join(parts[threadIdx.x], parts[threadIdx.x + half]);
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
            mine = Join::join(
                mine, cast_value<A>(x[Place<rank, int64_t>(job.folded_shape, k).in(job.folded_steps)]));
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
            mine = Join::join(
                mine, cast_value<A>(x[Place<rank, int64_t>(job.folded_shape, k).in(job.folded_steps)]));
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
        const bool better = a_nan || b_nan       ? b_nan && (!a_nan || b.at < a.at)
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
/// of a block take a run of neighbours each. `load(place, k)` is element k of a line, `store(place, sum)`.
template <typename Join, typename A, typename Load, typename Store>
TENSORA_INLINE void scan_lines(int64_t outer, int64_t n, int64_t inner, Load load, Store store) {
    __shared__ __align__(16) unsigned char room[256 * sizeof(A)];
    A* const totals = reinterpret_cast<A*>(room);
    for (int64_t i = blockIdx.x; i < outer * inner; i += gridDim.x) {
        const int64_t base = i / inner * n * inner + i % inner;
        const int64_t length = (n + blockDim.x - 1) / blockDim.x;
        const int64_t begin = threadIdx.x * length, end = begin + length < n ? begin + length : n;
        A mine = Join::start();
        for (int64_t k = begin; k < end; ++k) mine = Join::join(mine, load(base + k * inner, k));
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
            sum = Join::join(sum, load(base + k * inner, k));
            store(base + k * inner, sum);
        }
    }
}

/// log(exp(a) + exp(b)); NaN goes through.
template <typename A>
struct SumOfPowers {
    static TENSORA_INLINE A start() { return lowest<A>(); }
    static TENSORA_INLINE A join(A a, A b) {
        const A high = a > b ? a : b, low = a > b ? b : a;
        if (a != a || b != b) return a + b;
        return low == high && math::isinf(high) ? high : high + math::log1p(math::exp(low - high));
    }
};

/// The largest (or smallest) so far, of equal ones the last; of NaN the last.
template <typename A, bool largest>
struct Running {
    static TENSORA_INLINE Found<A> start() { return {A(0), -1}; }
    static TENSORA_INLINE Found<A> join(Found<A> a, Found<A> b) {
        if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
        if (is_nan(a.value) || is_nan(b.value)) return is_nan(b.value) ? b : a;
        return (largest ? b.value < a.value : a.value < b.value) ? a : b;
    }
};

/// out[i] = a[i] out[i - 1] + b[i], a thread for each line: the product of many factors would overflow.
template <typename S>
TENSORA_INLINE void recur_lines(int64_t outer, int64_t n, int64_t inner, const S* a, const S* b, S* out) {
    using E = Computed<S>;
    for (int64_t i = first_element(); i < outer * inner; i += all_threads()) {
        const int64_t base = i / inner * n * inner + i % inner;
        E value = E(b[base]);
        out[base] = S(value);
        for (int64_t k = 1; k < n; ++k) {
            const int64_t at = base + k * inner;
            value = E(E(a[at]) * value + E(b[at]));
            out[at] = S(value);
        }
    }
}

// --- fused operations on rows, a block for each row at a time
// Halves are computed as floats; weights, statistics and losses have the type that is computed in.

template <typename A>
TENSORA_INLINE A total(A mine) {
    return over_block<Sum<A>>(mine);
}

/// Sum of f(k) for k below n, in all threads of the block.
template <typename A, typename Function>
TENSORA_INLINE A sum_over(int64_t n, Function f) {
    A mine(0);
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) mine += f(k);
    return total(mine);
}

template <typename E>
struct Exponentials {
    E most, sum;
};
/// The largest of a row and the sum of all e^(x - largest).
template <typename S, typename E = Computed<S>>
TENSORA_INLINE Exponentials<E> exponentials(int64_t n, const S* x) {
    E most = lowest<E>();
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) most = Largest<E>::join(most, E(x[k]));
    most = over_block<Largest<E>>(most);
    const E from = math::isinf(most) ? E(0) : most;
    return {from, sum_over<E>(n, [&](int64_t k) { return fast_exp(E(x[k]) - from); })};
}

template <typename S, bool logarithm>
TENSORA_INLINE void softmax_rows(int64_t rows, int64_t n, const S* x, S* out) {
    using E = Computed<S>;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const S* const from = x + row * n;
        const Exponentials<E> all = exponentials(n, from);
        const E offset = all.most + fast_log(all.sum), factor = E(1) / all.sum;
        for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
            out[row * n + k] = S(logarithm ? E(from[k]) - offset : fast_exp(E(from[k]) - all.most) * factor);
    }
}

/// From the gradient g of the result y.
template <typename S, bool logarithm>
TENSORA_INLINE void softmax_backward_rows(int64_t rows, int64_t n, const S* g, const S* y, S* out) {
    using E = Computed<S>;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t at = row * n;
        const E sum =
            sum_over<E>(n, [&](int64_t k) { return logarithm ? E(g[at + k]) : E(g[at + k]) * E(y[at + k]); });
        for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
            const E gradient = E(g[at + k]), result = E(y[at + k]);
            out[at + k] = S(logarithm ? gradient - fast_exp(result) * sum : result * (gradient - sum));
        }
    }
}

/// What cross entropy is given besides the logits: see kernels/loops.h.
template <typename S>
struct CrossEntropy {
    using E = Computed<S>;
    int64_t rows, n, ignored;
    double smoothing;
    const S* x;
    const int64_t* target;
    const E* weight;
    const double* weight_sum;
    E *loss, *lse, *row_weight;
    S* gx;

    TENSORA_INLINE E weight_of(int64_t k) const { return weight ? weight[k] : E(1); }
    TENSORA_INLINE E sum_of_weights() const { return weight_sum ? E(*weight_sum) : E(n); }
};

template <typename S>
TENSORA_INLINE void cross_entropy_rows(const CrossEntropy<S>& job) {
    using E = Computed<S>;
    const E smoothing = E(job.smoothing);
    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        const S* const x = job.x + row * job.n;
        const Exponentials<E> all = exponentials(job.n, x);
        const E lse = all.most + fast_log(all.sum);
        const E spread = job.smoothing == 0 ? E(0) : sum_over<E>(job.n, [&](int64_t k) {
            return job.weight_of(k) * (lse - E(x[k]));
        });
        if (threadIdx.x > 0) continue;
        const int64_t target = job.target[row];
        const bool counts = target != job.ignored;
        const E weight = counts ? job.weight_of(target) : E(0);
        job.lse[row] = lse;
        job.row_weight[row] = weight;
        job.loss[row] =
            counts ? (1 - smoothing) * weight * (lse - E(x[target])) + smoothing / E(job.n) * spread : E(0);
    }
}

/// `loss` holds the gradients of the losses.
template <typename S>
TENSORA_INLINE void cross_entropy_backward_rows(const CrossEntropy<S>& job) {
    using E = Computed<S>;
    const E smoothing = E(job.smoothing), all_weights = job.sum_of_weights();
    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        const int64_t target = job.target[row];
        const bool counts = target != job.ignored;
        const E own = counts ? (1 - smoothing) * job.weight_of(target) : E(0);
        const E each = smoothing / E(job.n), sum = own + each * all_weights, g = job.loss[row];
        for (int64_t k = threadIdx.x; k < job.n; k += blockDim.x) {
            const int64_t at = row * job.n + k;
            const E constant = each * job.weight_of(k) + (k == target ? own : E(0));
            job.gx[at] = S(counts ? g * (sum * fast_exp(E(job.x[at]) - job.lse[row]) - constant) : E(0));
        }
    }
}

/// out = (x - mean) * rstd * weight + bias of rows whose weights lie as the row does.
template <typename S>
struct Norm {
    using E = Computed<S>;
    int64_t rows, n;
    double eps;
    bool centered;
    const S* x;
    const E *weight, *bias;
    S* out;
    E *mean, *rstd;
};

template <typename S>
TENSORA_INLINE void norm_rows(const Norm<S>& job) {
    using E = Computed<S>;
    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        const S* const x = job.x + row * job.n;
        const E mean =
            job.centered ? sum_over<E>(job.n, [&](int64_t k) { return E(x[k]); }) / E(job.n) : E(0);
        const E squares = sum_over<E>(job.n, [&](int64_t k) { return (E(x[k]) - mean) * (E(x[k]) - mean); });
        const E rstd = E(1) / math::sqrt(squares / E(job.n) + E(job.eps));
        for (int64_t k = threadIdx.x; k < job.n; k += blockDim.x) {
            E y = (E(x[k]) - mean) * rstd;
            if (job.weight) y *= job.weight[k];
            if (job.bias) y += job.bias[k];
            job.out[row * job.n + k] = S(y);
        }
        if (threadIdx.x == 0) job.mean[row] = mean, job.rstd[row] = rstd;
    }
}

/// Gradient of x. `job.out` is that gradient, `job.mean` and `job.rstd` are read.
template <typename S>
TENSORA_INLINE void norm_backward_rows(const Norm<S>& job, const S* g) {
    using E = Computed<S>;
    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        const int64_t at = row * job.n;
        const E mean = job.mean[row], rstd = job.rstd[row];
        const auto weighted = [&](int64_t k) { return E(g[at + k]) * (job.weight ? job.weight[k] : E(1)); };
        const auto normalized = [&](int64_t k) { return (E(job.x[at + k]) - mean) * rstd; };
        const E first = job.centered ? sum_over<E>(job.n, weighted) / E(job.n) : E(0);
        const E second =
            sum_over<E>(job.n, [&](int64_t k) { return weighted(k) * normalized(k); }) / E(job.n);
        for (int64_t k = threadIdx.x; k < job.n; k += blockDim.x)
            job.out[at + k] = S((weighted(k) - first - normalized(k) * second) * rstd);
    }
}

/// Gradients of weight and bias, in `parts` runs of rows: gw[part * n + k], and likewise gb.
template <typename S>
TENSORA_INLINE void norm_weight_gradients(const Norm<S>& job, const S* g, int64_t parts, Computed<S>* gw,
                                          Computed<S>* gb) {
    using E = Computed<S>;
    const int64_t length = (job.rows + parts - 1) / parts;
    for (int64_t i = first_element(); i < job.n * parts; i += all_threads()) {
        const int64_t k = i % job.n, begin = i / job.n * length;
        const int64_t end = begin + length < job.rows ? begin + length : job.rows;
        E of_weight(0), of_bias(0);
        for (int64_t row = begin; row < end; ++row) {
            const E gradient = E(g[row * job.n + k]);
            of_weight += gradient * (E(job.x[row * job.n + k]) - job.mean[row]) * job.rstd[row];
            of_bias += gradient;
        }
        gw[i] = of_weight;
        gb[i] = of_bias;
    }
}

/// Normalization where a row is `segments` runs of n neighbours with a weight and bias each: see
/// kernels/loops.h.
template <typename S>
struct ChannelNorm {
    using E = Computed<S>;
    int64_t rows, n, segments, row_step, step, groups;
    double eps;
    const S* x;
    const E *weight, *bias;
    E *mean, *rstd;
    S* out;      ///< of the backward kernel: gradient of x
    const S* g;  ///< backward only, as the sums: of g and of g * normalized x, of each segment
    E* sums;

    __device__ int64_t channel(int64_t row, int64_t segment) const {
        return groups ? row % groups * segments + segment : row;
    }
    __device__ int64_t place(int64_t row, int64_t i) const { return row * row_step + i / n * step + i % n; }
    __device__ E weight_of(int64_t row, int64_t segment) const {
        return weight ? weight[channel(row, segment)] : E(1);
    }
};

template <typename S>
TENSORA_INLINE void channel_norm_rows(const ChannelNorm<S>& job) {
    using E = Computed<S>;
    const int64_t count = job.n * job.segments;
    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        const E mean = sum_over<E>(count, [&](int64_t i) { return E(job.x[job.place(row, i)]); }) / E(count);
        const E squares = sum_over<E>(count, [&](int64_t i) {
            const E distance = E(job.x[job.place(row, i)]) - mean;
            return distance * distance;
        });
        const E rstd = E(1) / math::sqrt(squares / E(count) + E(job.eps));
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
            const int64_t segment = i / job.n, at = job.place(row, i);
            const E shift = job.bias ? job.bias[job.channel(row, segment)] : E(0);
            job.out[at] = S((E(job.x[at]) - mean) * rstd * job.weight_of(row, segment) + shift);
        }
        if (threadIdx.x == 0) job.mean[row] = mean, job.rstd[row] = rstd;
    }
}

template <typename S>
TENSORA_INLINE void channel_norm_backward_rows(const ChannelNorm<S>& job) {
    using E = Computed<S>;
    const int64_t count = job.n * job.segments;
    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        const E mean = job.mean[row], rstd = job.rstd[row];
        E sum(0), dot(0);
        for (int64_t segment = 0; segment < job.segments; ++segment) {
            const int64_t begin = row * job.row_step + segment * job.step;
            const E first = sum_over<E>(job.n, [&](int64_t k) { return E(job.g[begin + k]); });
            const E second = sum_over<E>(job.n, [&](int64_t k) {
                return E(job.g[begin + k]) * ((E(job.x[begin + k]) - mean) * rstd);
            });
            sum += job.weight_of(row, segment) * first;
            dot += job.weight_of(row, segment) * second;
            if (threadIdx.x > 0) continue;
            job.sums[2 * (row * job.segments + segment)] = first;
            job.sums[2 * (row * job.segments + segment) + 1] = second;
        }
        const E shift = sum / E(count), slope = dot / E(count) * rstd;
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
            const int64_t at = job.place(row, i);
            const E own = E(job.g[at]) * job.weight_of(row, i / job.n);
            job.out[at] = S(rstd * (own - shift - (E(job.x[at]) - mean) * slope));
        }
    }
}

// --- optimizers: the formulas of kernels/rows.cpp

template <typename S>
struct Sgd {
    int64_t n;
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first;
    S* param;
    const S* grad;
    S* buffer;
};

template <typename S>
TENSORA_INLINE void sgd_step(const Sgd<S>& step) {
    using E = Computed<S>;
    const E lr = E(step.lr), momentum = E(step.momentum), decay = E(step.weight_decay);
    const E take = step.first ? E(1) : E(1 - step.dampening);
    for (int64_t i = first_element(); i < step.n; i += all_threads()) {
        const E p = E(step.param[i]);
        const E g = (step.maximize ? -E(step.grad[i]) : E(step.grad[i])) + decay * p;
        E moved = g;
        if (step.buffer) {
            const E kept = (step.first ? E(0) : momentum * E(step.buffer[i])) + take * g;
            step.buffer[i] = S(kept);
            moved = step.nesterov ? g + momentum * kept : kept;
        }
        step.param[i] = S(p - lr * moved);
    }
}

template <typename S>
struct Adam {
    int64_t n;
    double lr, beta1, beta2, eps, weight_decay, correction1, correction2;
    bool decoupled, maximize;
    S* param;
    const S* grad;
    S *mean, *square, *most;
};

template <typename S>
TENSORA_INLINE void adam_step(const Adam<S>& step) {
    using E = Computed<S>;
    const E beta2 = E(step.beta2), rest1 = E(1 - step.beta1), rest2 = E(1 - step.beta2), eps = E(step.eps);
    const E size = E(step.lr / step.correction1), scale = E(1 / math::sqrt(step.correction2));
    const E decay = step.decoupled ? E(0) : E(step.weight_decay);
    const E shrink = step.decoupled ? E(1 - step.lr * step.weight_decay) : E(1);
    for (int64_t i = first_element(); i < step.n; i += all_threads()) {
        const E old = E(step.param[i]);
        const E g = (step.maximize ? -E(step.grad[i]) : E(step.grad[i])) + decay * old;
        const E m = E(step.mean[i]) + rest1 * (g - E(step.mean[i]));
        const E v = beta2 * E(step.square[i]) + rest2 * g * g;
        step.mean[i] = S(m);
        step.square[i] = S(v);
        E largest = v;
        if (step.most) {
            largest = v > E(step.most[i]) ? v : E(step.most[i]);
            step.most[i] = S(largest);
        }
        step.param[i] = S(old * shrink - size * m / (math::sqrt(largest) * scale + eps));
    }
}

// --- gradient of a convolution's weights: a block for each weight

template <typename S>
TENSORA_INLINE void convolution_weight(const Convolution<S>& c) {
    using E = Computed<S>;
    const int64_t taps = c.kernel_size(), size = c.out_size();
    const int64_t weights = c.groups * c.out_channels * c.in_channels * taps;
    for (int64_t i = blockIdx.x; i < weights; i += gridDim.x) {
        const int64_t in = i / taps % c.in_channels, channel = i / taps / c.in_channels;
        const int64_t group = channel / c.out_channels;
        const Triple tap(c.kernel, i % taps);
        const E sum = sum_over<E>(c.images * size, [&](int64_t k) {
            const int64_t image = k / size, place = place_read(c, Triple(c.out, k % size), tap);
            if (place < 0) return E(0);
            const int64_t source = (image * c.groups + group) * c.in_channels + in;
            return E(c.first[source * c.in_size() + place]) *
                   E(c.second[(image * c.groups * c.out_channels + channel) * size + k % size]);
        });
        if (threadIdx.x == 0) c.result[i] = S(sum);
    }
}

}  // namespace accelera::tensora::device
