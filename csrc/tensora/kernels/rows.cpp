// Loops of the fused operations, compiled once for each instruction set. Where a sum or a maximum may be
// taken in any order, `omp simd` says so; nowhere else, since the rounding of exp depends on the order.
#include <algorithm>
#include <limits>

#include "tensora/kernels/loops.h"
#include "tensora/kernels/scalar.h"

#define LANES _Pragma("omp simd")
#define INLINED __attribute__((always_inline))

namespace accelera::tensora::TENSORA_ISA {

namespace {

constexpr int64_t piece = 256;

/// Prefetch of the next row while this one is computed: else the memory rests during all passes but the
/// first.
struct NextRow {
    const char* read = nullptr;
    char* written = nullptr;

    template <typename S>
    TENSORA_INLINE void fetch(int64_t begin, int64_t size) const {
        for (int64_t at = begin * int64_t(sizeof(S)); at < (begin + size) * int64_t(sizeof(S)); at += 64) {
            __builtin_prefetch(read + at, 0);
            __builtin_prefetch(written + at, 1);
        }
    }
};

/// Sum of `term(i)` for i below n, in double over pieces. Of a piece four quarters side by side, since one
/// sum would wait for its own last addition.
template <typename E, typename S = E, typename Term>
TENSORA_INLINE double sum_of(int64_t n, Term term, NextRow next = {}) {
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += piece) {
        const int64_t size = n - begin < piece ? n - begin : piece, q = size / 4;
        if (next.read) next.fetch<S>(begin, size);
        E a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
        for (int64_t i = begin; i < begin + q; ++i) {
            a += term(i);
            b += term(i + q);
            c += term(i + 2 * q);
            d += term(i + 3 * q);
        }
        for (int64_t i = begin + 4 * q; i < begin + size; ++i) a += term(i);
        total += double((a + b) + (c + d));
    }
    return total;
}

template <typename S>
TENSORA_INLINE Computed<S> largest(int64_t n, const S* x) {
    using E = Computed<S>;
    const int64_t q = n / 2;
    E most = -std::numeric_limits<E>::infinity(), other = most;
#pragma omp simd reduction(max : most, other)
    for (int64_t i = 0; i < q; ++i) {
        most = E(x[i]) > most ? E(x[i]) : most;
        other = E(x[i + q]) > other ? E(x[i + q]) : other;
    }
    most = other > most ? other : most;
    return n % 2 && E(x[n - 1]) > most ? E(x[n - 1]) : most;
}

template <typename S>
struct Rows {
    using E = Computed<S>;
    static const S* row(const void* x, int64_t i, int64_t n) { return static_cast<const S*>(x) + i * n; }
    static S* row(void* x, int64_t i, int64_t n) { return static_cast<S*>(x) + i * n; }
    static E& at(void* x, int64_t i) { return static_cast<E*>(x)[i]; }
    static E at(const void* x, int64_t i) { return static_cast<const E*>(x)[i]; }

    /// Of row k + 1, where this thread computes it.
    static NextRow after(int64_t k, int64_t end, int64_t n, const void* x, void* out) {
        if (k + 1 >= end) return {};
        return {reinterpret_cast<const char*>(row(x, k + 1, n)), reinterpret_cast<char*>(row(out, k + 1, n))};
    }

    // --- softmax -----------------------------------------------------------------------------------------

    static void softmax(const SoftmaxJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        for (int64_t k = begin; k < end; ++k) {
            const S* const x = row(job.x, k, n);
            S* const out = row(job.out, k, n);
            const E most = largest(n, x);
            // Halves are computed twice: a rounded exponential must not be rounded again.
            const auto term = [=](int64_t i) INLINED {
                const E value = exp_down(E(x[i]) - most);
                if constexpr (!is_half<S>) out[i] = value;
                return value;
            };
            const double total = sum_of<E, S>(n, term, after(k, end, n, job.x, job.out));
            const E scale = E(1 / total);
            LANES for (int64_t i = 0; i < n; ++i) {
                if constexpr (is_half<S>)
                    out[i] = S(exp_down(E(x[i]) - most) * scale);
                else
                    out[i] *= scale;
            }
        }
    }

    /// Sum of exp(x[i] - most).
    static TENSORA_INLINE double exponentials(int64_t n, const S* x, E most, NextRow next = {}) {
        return sum_of<E, S>(n, [=](int64_t i) INLINED { return exp_down(E(x[i]) - most); }, next);
    }

    static void log_softmax(const SoftmaxJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        for (int64_t k = begin; k < end; ++k) {
            const S* const x = row(job.x, k, n);
            S* const out = row(job.out, k, n);
            const E most = largest(n, x);
            const E shift = E(std::log(exponentials(n, x, most, after(k, end, n, job.x, job.out))));
            LANES for (int64_t i = 0; i < n; ++i) out[i] = S((E(x[i]) - most) - shift);
        }
    }

    static void softmax_backward(const SoftmaxJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        for (int64_t k = begin; k < end; ++k) {
            const S *const g = row(job.x, k, n), *const y = row(job.y, k, n);
            S* const out = row(job.out, k, n);
            const E dot = E(sum_of<E>(n, [=](int64_t i) INLINED { return E(g[i]) * E(y[i]); }));
            LANES for (int64_t i = 0; i < n; ++i) out[i] = S(E(y[i]) * (E(g[i]) - dot));
        }
    }

    static void log_softmax_backward(const SoftmaxJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        for (int64_t k = begin; k < end; ++k) {
            const S *const g = row(job.x, k, n), *const y = row(job.y, k, n);
            S* const out = row(job.out, k, n);
            const E total = E(sum_of<E>(n, [=](int64_t i) INLINED { return E(g[i]); }));
            LANES for (int64_t i = 0; i < n; ++i) out[i] = S(E(g[i]) - exp_down(E(y[i])) * total);
        }
    }

    // --- cross entropy -----------------------------------------------------------------------------------

    static void cross_entropy(const CrossEntropyJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        const E* const weight = static_cast<const E*>(job.weight);
        for (int64_t k = begin; k < end; ++k) {
            const int64_t target = job.class_of(k);
            at(job.loss, k) = at(job.lse, k) = at(job.row_weight, k) = 0;
            if (target < 0) continue;
            const S* const x = row(job.x, k, n);
            const E most = largest(n, x);
            const double logarithm = std::log(exponentials(n, x, most));
            const E own = weight ? weight[target] : E(1);
            double loss = (1 - job.smoothing) * double(own) * (logarithm + double(most - E(x[target])));
            if (job.smoothing != 0) {
                const double rest =
                    weight ? sum_of<E>(n, [=](int64_t i) INLINED { return weight[i] * (most - E(x[i])); })
                           : sum_of<E>(n, [=](int64_t i) INLINED { return most - E(x[i]); });
                loss += job.smoothing / double(n) * (job.weight_sum * logarithm + rest);
            }
            at(job.loss, k) = E(loss);
            at(job.lse, k) = E(double(most) + logarithm);
            at(job.row_weight, k) = own;
        }
    }

    static void cross_entropy_backward(const CrossEntropyJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        const E* const weight = static_cast<const E*>(job.weight);
        for (int64_t k = begin; k < end; ++k) {
            S* const gx = row(job.gx, k, n);
            const int64_t target = job.class_of(k);
            if (target < 0) {
                std::fill_n(gx, n, S(0.0f));
                continue;
            }
            const S* const x = row(job.x, k, n);
            const E g = at(job.loss, k), lse = at(job.lse, k);
            const E own = E(1 - job.smoothing) * (weight ? weight[target] : E(1));
            const E each = E(job.smoothing / double(n));
            const E all = g * (own + each * E(job.weight_sum)), part = g * each;
            if (weight)
                LANES for (int64_t i = 0; i < n; ++i) gx[i] =
                    S(all * exp_down(E(x[i]) - lse) - part * weight[i]);
            else
                LANES for (int64_t i = 0; i < n; ++i) gx[i] = S(all * exp_down(E(x[i]) - lse) - part);
            const E there = weight ? weight[target] : E(1);
            gx[target] = S(all * exp_down(E(x[target]) - lse) - part * there - g * own);
        }
    }

    // --- normalization -----------------------------------------------------------------------------------

    /// Add the distances from `near`, and their squares.
    static TENSORA_INLINE void add_distances(int64_t n, const S* x, E near, double& off, double& squares) {
        for (int64_t begin = 0; begin < n; begin += piece) {
            const int64_t size = n - begin < piece ? n - begin : piece, q = size / 2;
            E sum = 0, square = 0, other = 0, other_square = 0;
#pragma omp simd reduction(+ : sum, square, other, other_square)
            for (int64_t i = begin; i < begin + q; ++i) {
                const E distance = E(x[i]) - near, next = E(x[i + q]) - near;
                sum += distance;
                square += distance * distance;
                other += next;
                other_square += next * next;
            }
            const E last = size % 2 ? E(x[begin + size - 1]) - near : E(0);
            off += double(sum + (other + last));
            squares += double(square + (other_square + last * last));
        }
    }

    /// Mean and variance by two passes with the correction of T. Chan, G. Golub and R. LeVeque (1983).
    static TENSORA_INLINE double statistics(int64_t n, const S* x, bool centered, double& variance) {
        if (!centered) {
            variance = sum_of<E>(n, [=](int64_t i) INLINED { return E(x[i]) * E(x[i]); }) / double(n);
            return 0;
        }
        const E near = E(sum_of<E>(n, [=](int64_t i) INLINED { return E(x[i]); }) / double(n));
        double off = 0, squares = 0;
        add_distances(n, x, near, off, squares);
        off /= double(n);
        variance = std::max(squares / double(n) - off * off, 0.0);
        return double(near) + off;
    }

    static void norm(const NormJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        const E *const weight = static_cast<const E*>(job.weight), *const bias =
                                                                       static_cast<const E*>(job.bias);
        for (int64_t k = begin; k < end; ++k) {
            const S* const x = row(job.x, k, n);
            S* const out = row(job.out, k, n);
            double variance = 0;
            const E mean = E(statistics(n, x, job.centered, variance));
            const E rstd = E(1 / std::sqrt(variance + job.eps));
            if (weight && bias)
                LANES for (int64_t i = 0; i < n; ++i) out[i] =
                    S((E(x[i]) - mean) * rstd * weight[i] + bias[i]);
            else if (weight)
                LANES for (int64_t i = 0; i < n; ++i) out[i] = S((E(x[i]) - mean) * rstd * weight[i]);
            else
                LANES for (int64_t i = 0; i < n; ++i) out[i] = S((E(x[i]) - mean) * rstd);
            at(job.mean, k) = mean;
            at(job.rstd, k) = rstd;
        }
    }

    /// Sums of h and of h * normalized x, with h = g * weight; and the parts of the gradients of weight and
    /// bias.
    template <bool weighted>
    static TENSORA_INLINE void norm_sums(const NormBackwardJob& job, int64_t k, double& sum, double& dot) {
        const int64_t n = job.n;
        const S *const g = row(job.g, k, n), *const x = row(job.x, k, n);
        const E* const weight = static_cast<const E*>(job.weight);
        E *const gw = static_cast<E*>(job.gw), *const gb = static_cast<E*>(job.gb);
        const E mean = at(job.mean, k), rstd = at(job.rstd, k);
        for (int64_t begin = 0; begin < n; begin += piece) {
            const int64_t end = begin + piece < n ? begin + piece : n;
            E first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
            for (int64_t i = begin; i < end; ++i) {
                const E normal = (E(x[i]) - mean) * rstd;
                E h = E(g[i]);
                if constexpr (weighted) {
                    gw[i] += h * normal;
                    gb[i] += h;
                    h *= weight[i];
                }
                first += h;
                second += h * normal;
            }
            sum += double(first);
            dot += double(second);
        }
    }

    template <bool weighted>
    static void norm_backward_rows(const NormBackwardJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        const E* const weight = static_cast<const E*>(job.weight);
        if (weighted) {
            std::fill_n(static_cast<E*>(job.gw), n, E(0));
            std::fill_n(static_cast<E*>(job.gb), n, E(0));
        }
        for (int64_t k = begin; k < end; ++k) {
            double sum = 0, dot = 0;
            norm_sums<weighted>(job, k, sum, dot);
            const S *const g = row(job.g, k, n), *const x = row(job.x, k, n);
            S* const gx = row(job.gx, k, n);
            const E mean = at(job.mean, k), rstd = at(job.rstd, k);
            const E shift = job.centered ? E(sum / double(n)) : E(0), slope = E(dot / double(n)) * rstd;
            LANES for (int64_t i = 0; i < n; ++i) {
                E h = E(g[i]);
                if constexpr (weighted) h *= weight[i];
                gx[i] = S(rstd * (h - shift - (E(x[i]) - mean) * slope));
            }
        }
    }
    static void norm_backward(const NormBackwardJob& job, int64_t begin, int64_t end) {
        job.weight ? norm_backward_rows<true>(job, begin, end) : norm_backward_rows<false>(job, begin, end);
    }

    static const S* segment(const ChannelNormJob& job, const void* x, int64_t k, int64_t i) {
        return static_cast<const S*>(x) + k * job.row_step + i * job.step;
    }
    static E weight_at(const void* weight, int64_t channel, E otherwise) {
        return weight ? at(weight, channel) : otherwise;
    }

    static void channel_norm(const ChannelNormJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        const double count = double(n * job.segments);
        for (int64_t k = begin; k < end; ++k) {
            double sum = 0, off = 0, squares = 0;
            for (int64_t i = 0; i < job.segments; ++i) {
                const S* const x = segment(job, job.x, k, i);
                sum += sum_of<E>(n, [=](int64_t j) INLINED { return E(x[j]); });
            }
            const E near = E(sum / count);
            for (int64_t i = 0; i < job.segments; ++i)
                add_distances(n, segment(job, job.x, k, i), near, off, squares);
            off /= count;
            const E mean = E(double(near) + off);
            const E rstd = E(1 / std::sqrt(std::max(squares / count - off * off, 0.0) + job.eps));
            at(job.mean, k) = mean;
            at(job.rstd, k) = rstd;
            for (int64_t i = 0; i < job.segments; ++i) {
                const S* const x = segment(job, job.x, k, i);
                S* const out = const_cast<S*>(segment(job, job.out, k, i));
                const int64_t channel = job.channel(k, i);
                const E slope = rstd * weight_at(job.weight, channel, E(1));
                const E shift = weight_at(job.bias, channel, E(0));
                LANES for (int64_t j = 0; j < n; ++j) out[j] = S((E(x[j]) - mean) * slope + shift);
            }
        }
    }

    static void channel_norm_backward(const ChannelNormJob& job, int64_t begin, int64_t end) {
        const int64_t n = job.n;
        const double count = double(n * job.segments);
        for (int64_t k = begin; k < end; ++k) {
            const E mean = at(job.mean, k), rstd = at(job.rstd, k);
            double sum = 0, dot = 0;
            for (int64_t i = 0; i < job.segments; ++i) {
                const S *const g = segment(job, job.g, k, i), *const x = segment(job, job.x, k, i);
                double* const sums = job.sums + 2 * (k * job.segments + i);
                sums[0] = sum_of<E>(n, [=](int64_t j) INLINED { return E(g[j]); });
                sums[1] =
                    sum_of<E>(n, [=](int64_t j) INLINED { return E(g[j]) * ((E(x[j]) - mean) * rstd); });
                const double weight = double(weight_at(job.weight, job.channel(k, i), E(1)));
                sum += weight * sums[0];
                dot += weight * sums[1];
            }
            const E shift = E(sum / count), slope = E(dot / count) * rstd;
            for (int64_t i = 0; i < job.segments; ++i) {
                const S *const g = segment(job, job.g, k, i), *const x = segment(job, job.x, k, i);
                S* const gx = const_cast<S*>(segment(job, job.out, k, i));
                const E weight = weight_at(job.weight, job.channel(k, i), E(1));
                LANES for (int64_t j = 0; j < n; ++j) gx[j] =
                    S(rstd * (E(g[j]) * weight - shift - (E(x[j]) - mean) * slope));
            }
        }
    }

    static void add_parts(int64_t parts, int64_t step, const void* x, void* out, int64_t begin, int64_t end) {
        constexpr int64_t block = 256;
        for (int64_t first = begin; first < end; first += block) {
            const int64_t n = first + block < end ? block : end - first;
            double sums[block] = {};
            for (int64_t k = 0; k < parts; ++k) {
                const E* const from = static_cast<const E*>(x) + k * step + first;
                LANES for (int64_t i = 0; i < n; ++i) sums[i] += double(from[i]);
            }
            E* const to = static_cast<E*>(out) + first;
            for (int64_t i = 0; i < n; ++i) to[i] = E(sums[i]);
        }
    }

    // --- optimizers --------------------------------------------------------------------------------------

    static void sgd(const SgdStep& step, int64_t begin, int64_t end) {
        S *const param = static_cast<S*>(step.param), *const buffer = static_cast<S*>(step.buffer);
        const S* const grad = static_cast<const S*>(step.grad);
        const E lr = E(step.lr), momentum = E(step.momentum), decay = E(step.weight_decay);
        const E sign = step.maximize ? E(-1) : E(1);
        const E keep = step.first ? E(0) : momentum, take = step.first ? E(1) : E(1 - step.dampening);
        if (!buffer) {
            LANES for (int64_t i = begin; i < end; ++i) {
                const E p = E(param[i]);
                param[i] = S(p - lr * (sign * E(grad[i]) + decay * p));
            }
            return;
        }
        const E ahead = step.nesterov ? momentum : E(1), direct = step.nesterov ? E(1) : E(0);
        LANES for (int64_t i = begin; i < end; ++i) {
            const E p = E(param[i]), g = sign * E(grad[i]) + decay * p;
            const E moved = (step.first ? E(0) : keep * E(buffer[i])) + take * g;
            buffer[i] = S(moved);
            param[i] = S(p - lr * (direct * g + ahead * moved));
        }
    }

    template <bool amsgrad>
    static void adam_range(const AdamStep& step, int64_t begin, int64_t end) {
        S *const param = static_cast<S*>(step.param), *const mean = static_cast<S*>(step.mean);
        S *const square = static_cast<S*>(step.square), *const most = static_cast<S*>(step.most);
        const S* const grad = static_cast<const S*>(step.grad);
        const E beta2 = E(step.beta2), rest1 = E(1 - step.beta1), rest2 = E(1 - step.beta2),
                eps = E(step.eps);
        const E size = E(step.lr / step.correction1), scale = E(1 / std::sqrt(step.correction2));
        const E sign = step.maximize ? E(-1) : E(1);
        const E decay = step.decoupled ? E(0) : E(step.weight_decay);
        const E shrink = step.decoupled ? E(1 - step.lr * step.weight_decay) : E(1);
        LANES for (int64_t i = begin; i < end; ++i) {
            const E old = E(param[i]), g = sign * E(grad[i]) + decay * old;
            const E m = E(mean[i]) + rest1 * (g - E(mean[i]));
            const E v = beta2 * E(square[i]) + rest2 * g * g;
            mean[i] = S(m);
            square[i] = S(v);
            E largest = v;
            if constexpr (amsgrad) {
                largest = v > E(most[i]) ? v : E(most[i]);
                most[i] = S(largest);
            }
            param[i] = S(old * shrink - size * m / (std::sqrt(largest) * scale + eps));
        }
    }
    static void adam(const AdamStep& step, int64_t begin, int64_t end) {
        step.most ? adam_range<true>(step, begin, end) : adam_range<false>(step, begin, end);
    }

    static constexpr RowLoops all() {
        return {softmax,
                log_softmax,
                softmax_backward,
                log_softmax_backward,
                cross_entropy,
                cross_entropy_backward,
                norm,
                norm_backward,
                channel_norm,
                channel_norm_backward,
                add_parts,
                sgd,
                adam};
    }
};

}  // namespace

/// In the order of f16, bf16, f32, f64.
void fill_row_loops(RowLoops* loops) {
    loops[0] = Rows<Half>::all();
    loops[1] = Rows<BFloat>::all();
    loops[2] = Rows<float>::all();
    loops[3] = Rows<double>::all();
}

}  // namespace accelera::tensora::TENSORA_ISA
