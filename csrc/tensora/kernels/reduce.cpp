// Loops of the reductions, compiled once for each instruction set, with sums in any order.
#include <algorithm>
#include <limits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "tensora/kernels/loops.h"
#include "tensora/kernels/scalar.h"

namespace accelera::tensora::TENSORA_ISA {

namespace {

/// Sum: of floats and halves in double, so that rounding errors of equal terms do not add up.
template <typename S>
struct Sum {
    using A =
        std::conditional_t<is_half<S> || is_real<S>, double,
                           std::conditional_t<is_complex<S>, C128,
                                              std::conditional_t<std::is_unsigned_v<S>, uint64_t, int64_t>>>;
    using Out = std::conditional_t<Integer<Computed<S>>, A, S>;
    static A identity() { return A(0); }
    static TENSORA_INLINE A one(S x) {
        if constexpr (is_complex<S>)
            return A(x.real(), x.imag());
        else
            return A(Computed<S>(x));
    }
    static TENSORA_INLINE A both(A a, A b) { return a + b; }
};

template <typename S>
struct Prod {
    using A = typename Sum<S>::A;
    using Out = typename Sum<S>::Out;
    static A identity() { return A(1); }
    static TENSORA_INLINE A one(S x) { return Sum<S>::one(x); }
    static TENSORA_INLINE A both(A a, A b) { return a * b; }
};

template <typename S>
struct Max {
    using A = Computed<S>;
    using Out = S;
    static A identity() {
        if constexpr (Real<A>)
            return -std::numeric_limits<A>::infinity();
        else
            return std::numeric_limits<A>::lowest();
    }
    static TENSORA_INLINE A one(S x) { return A(x); }
    static TENSORA_INLINE A both(A a, A b) { return a > b || a != a ? a : b; }
};

template <typename S>
struct Min {
    using A = Computed<S>;
    using Out = S;
    static A identity() {
        if constexpr (Real<A>)
            return std::numeric_limits<A>::infinity();
        else
            return std::numeric_limits<A>::max();
    }
    static TENSORA_INLINE A one(S x) { return A(x); }
    static TENSORA_INLINE A both(A a, A b) { return a < b || a != a ? a : b; }
};

template <typename S>
struct Any {
    using A = bool;
    using Out = bool;
    static A identity() { return false; }
    static TENSORA_INLINE A one(S x) { return Computed<S>(x) != Computed<S>(0); }
    static TENSORA_INLINE A both(A a, A b) { return a | b; }
};

template <typename S>
struct All {
    using A = bool;
    using Out = bool;
    static A identity() { return true; }
    static TENSORA_INLINE A one(S x) { return Computed<S>(x) != Computed<S>(0); }
    static TENSORA_INLINE A both(A a, A b) { return a & b; }
};

template <typename R, typename S>
void start(int64_t n, char* acc) {
    std::fill_n(reinterpret_cast<typename R::A*>(acc), n, R::identity());
}

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
constexpr int width = vector_bytes / int(sizeof(double));

typedef double Wide __attribute__((vector_size(vector_bytes)));

TENSORA_INLINE Wide widened(const float* x) {
#if defined(__AVX512F__)
    return _mm512_cvtps_pd(_mm256_loadu_ps(x));  // gcc 12 makes two conversions of __builtin_convertvector
#else
    typedef float Narrow __attribute__((vector_size(vector_bytes / 2), aligned(sizeof(float)), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const Narrow*>(x), Wide);
#endif
}

/// Sum of neighbouring floats in double, in as many independent sums as additions are in flight.
double sum_of_floats(int64_t n, const float* x) {
    constexpr int vectors = 8;
    Wide sums[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[v] = Wide{};
    int64_t i = 0;
    for (; i + int64_t(vectors) * width <= n; i += int64_t(vectors) * width) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sums[v] += widened(x + i + int64_t(v) * width);
    }
    for (; i + width <= n; i += width) sums[0] += widened(x + i);
#pragma GCC unroll 8
    for (int v = 1; v < vectors; ++v) sums[0] += sums[v];
    double total = 0;
#pragma GCC unroll 8
    for (int k = 0; k < width; ++k) total += sums[0][k];
    for (; i < n; ++i) total += double(x[i]);
    return total;
}

template <typename S>
void widen(int64_t n, const S* x, float* to) {
    int64_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<S, Half>)
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(to + i,
                             _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
    for (; i < n; ++i) to[i] = float(x[i]);
}

template <typename S>
double sum_of_halves(int64_t n, const S* x) {
    constexpr int64_t block = 1024;
    float values[block];
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t size = std::min(block, n - begin);
        widen(size, x + begin, values);
        total += sum_of_floats(size, values);
    }
    return total;
}

template <typename R, typename S>
void line(int64_t n, const char* x, int64_t step, char* acc_bytes) {
    using A = typename R::A;
    A& acc = *reinterpret_cast<A*>(acc_bytes);
    if constexpr (std::is_same_v<R, Sum<S>> && (std::is_same_v<S, float> || is_half<S>)) {
        const S* const from = reinterpret_cast<const S*>(x);
        if (step == sizeof(S)) {
            if constexpr (is_half<S>)
                acc += sum_of_halves(n, from);
            else
                acc += sum_of_floats(n, from);
            return;
        }
    }
    if (step != sizeof(S)) {
        A sum = acc;
        for (int64_t i = 0; i < n; ++i) sum = R::both(sum, R::one(*reinterpret_cast<const S*>(x + i * step)));
        acc = sum;
        return;
    }
    constexpr int lanes = 16;
    const S* from = reinterpret_cast<const S*>(x);
    A sums[lanes];
    std::fill_n(sums, lanes, R::identity());
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int k = 0; k < lanes; ++k) sums[k] = R::both(sums[k], R::one(from[i + k]));
    A sum = acc;
    for (int k = 0; k < lanes; ++k) sum = R::both(sum, sums[k]);
    for (; i < n; ++i) sum = R::both(sum, R::one(from[i]));
    acc = sum;
}

template <typename R, typename S>
void rows(int64_t n, const char* x, int64_t step, char* acc_bytes) {
    using A = typename R::A;
    A* __restrict acc = reinterpret_cast<A*>(acc_bytes);
    if (step == sizeof(S)) {
        const S* from = reinterpret_cast<const S*>(x);
        for (int64_t i = 0; i < n; ++i) acc[i] = R::both(acc[i], R::one(from[i]));
    } else {
        for (int64_t i = 0; i < n; ++i)
            acc[i] = R::both(acc[i], R::one(*reinterpret_cast<const S*>(x + i * step)));
    }
}

template <typename R, typename S>
void merge(int64_t n, const char* other_bytes, char* acc_bytes) {
    using A = typename R::A;
    A* acc = reinterpret_cast<A*>(acc_bytes);
    const A* other = reinterpret_cast<const A*>(other_bytes);
    for (int64_t i = 0; i < n; ++i) acc[i] = R::both(acc[i], other[i]);
}

template <typename R, typename S>
void finish(int64_t n, const char* acc_bytes, char* out_bytes) {
    using Out = typename R::Out;
    const auto* acc = reinterpret_cast<const typename R::A*>(acc_bytes);
    Out* out = reinterpret_cast<Out*>(out_bytes);
    for (int64_t i = 0; i < n; ++i) out[i] = cast_value<Out>(acc[i]);
}

template <typename R, typename S>
void fill_one(Reducer& reducer, DType out) {
    reducer = {
        int64_t(sizeof(typename R::A)), start<R, S>, line<R, S>, rows<R, S>, merge<R, S>, finish<R, S>, out};
}

}  // namespace

void fill_reducers(Reducers& table) {
    for (int i = 0; i < n_dtypes; ++i) {
        const DType dtype = DType(i);
        auto& of = table.of;
        visit(dtype, [&]<typename S>(Tag<S>) {
            const DType wide = is(dtype, unsigneds)            ? DType::u64
                               : is(dtype, signeds | booleans) ? DType::i64
                                                               : dtype;
            fill_one<Sum<S>, S>(of[int(Reduction::sum)][i], wide);
            fill_one<Prod<S>, S>(of[int(Reduction::prod)][i], wide);
            fill_one<Any<S>, S>(of[int(Reduction::any)][i], DType::bool_);
            fill_one<All<S>, S>(of[int(Reduction::all)][i], DType::bool_);
            if constexpr (!is_complex<S>) {
                fill_one<Max<S>, S>(of[int(Reduction::max)][i], dtype);
                fill_one<Min<S>, S>(of[int(Reduction::min)][i], dtype);
            }
        });
    }
}

}  // namespace accelera::tensora::TENSORA_ISA
