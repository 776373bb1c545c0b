// Loops of the elementwise operations. Compiled once for each instruction set: TENSORA_ISA names it. Types
// that a wider set does not speed up much (TENSORA_ALL_TYPES is not defined) are left to the baseline.
#include <algorithm>
#include <array>

#include "tensora/kernels/loops.h"
#include "tensora/kernels/scalar.h"

namespace accelera::tensora::TENSORA_ISA {

namespace {

template <typename E>
constexpr DType dtype_of() {
    constexpr auto find = []<typename... Es>(Tag<Es>...) {
        constexpr bool same[] = {std::is_same_v<E, Es>...};
        if constexpr (std::is_same_v<E, Bool>) return DType::bool_;
        int i = 0;
        while (!same[i]) ++i;
        return DType(i);
    };
    return find(Tag<bool>(), Tag<uint8_t>(), Tag<uint16_t>(), Tag<uint32_t>(), Tag<uint64_t>(), Tag<int8_t>(),
                Tag<int16_t>(), Tag<int32_t>(), Tag<int64_t>(), Tag<Half>(), Tag<BFloat>(), Tag<float>(),
                Tag<double>(), Tag<C64>(), Tag<C128>());
}

template <typename E>
TENSORA_INLINE const E& at(const char* data, int64_t step, int64_t i) {
    return *reinterpret_cast<const E*>(data + step * i);
}

/// Two forms of a formula: one without branches, whose loop is vectorized, for all pairs of which `is_slow`
/// is false.
template <typename F>
struct QuickForm {
    static constexpr bool exists = false;
};
template <>
struct QuickForm<floor_divide_formula> {
    static constexpr bool exists = true;
    template <typename E>
    static TENSORA_INLINE E of(E x, E y) {
        return floor_divide_quickly(x, y);
    }
    template <typename E>
    static TENSORA_INLINE bool is_slow(E x, E y) {
        return floor_divide_is_slow(x, y);
    }
};

/// `F::of` of stored values; halves are computed as floats.
template <typename F, typename S>
struct Loops {
    using E = Computed<S>;
    template <typename... Es>
    static TENSORA_INLINE auto value(Es... stored) {
        return F::template of<S, E>(E(stored)...);
    }

    template <size_t... I>
    static constexpr auto result_of(std::index_sequence<I...>) -> decltype(value((void(I), S())...));
    template <int N>
    using Result = decltype(result_of(std::make_index_sequence<N>()));
    template <int N>
    using Stored = std::conditional_t<std::is_same_v<Result<N>, E>, S, Result<N>>;

    static void one(int64_t n, char* out_bytes, int64_t out_step, const char* const* in,
                    const int64_t* steps) {
        using O = Stored<1>;
        if (out_step == sizeof(O) && steps[0] == sizeof(S)) {
            O* __restrict out = reinterpret_cast<O*>(out_bytes);
            const S* x = reinterpret_cast<const S*>(in[0]);
            for (int64_t i = 0; i < n; ++i) out[i] = O(value(x[i]));
        } else {
            for (int64_t i = 0; i < n; ++i)
                *reinterpret_cast<O*>(out_bytes + i * out_step) = O(value(at<S>(in[0], steps[0], i)));
        }
    }

    /// Blocks by the quick form; a block with a pair that it does not apply to by the formula.
    template <int x_step, int y_step>
    static void two_quickly(int64_t n, S* out, const S* x, const S* y) {
        using Mask = typename Bits<E>::Int;
        constexpr int64_t block = 256;
        for (int64_t begin = 0; begin < n; begin += block) {
            const int64_t size = n - begin < block ? n - begin : block;
            const S *const a = x + begin * x_step, *const b = y + begin * y_step;
            S results[block];  // the output may be an input
            Mask slow = 0;
            for (int64_t i = 0; i < size; ++i) {
                results[i] = QuickForm<F>::of(a[i * x_step], b[i * y_step]);
                slow |= QuickForm<F>::is_slow(a[i * x_step], b[i * y_step]) ? Mask(-1) : Mask(0);
            }
            if (slow) [[unlikely]]
                for (int64_t i = 0; i < size; ++i) results[i] = value(a[i * x_step], b[i * y_step]);
            std::copy_n(results, size, out + begin);
        }
    }

    static void two(int64_t n, char* out_bytes, int64_t out_step, const char* const* in,
                    const int64_t* steps) {
        using O = Stored<2>;
        if constexpr (QuickForm<F>::exists && Real<S>) {
            const S *const a = reinterpret_cast<const S*>(in[0]), *const b =
                                                                      reinterpret_cast<const S*>(in[1]);
            S* const to = reinterpret_cast<S*>(out_bytes);
            const bool x_dense = steps[0] == sizeof(S), y_dense = steps[1] == sizeof(S);
            if (out_step == sizeof(S) && x_dense && y_dense) return two_quickly<1, 1>(n, to, a, b);
            if (out_step == sizeof(S) && x_dense && steps[1] == 0) return two_quickly<1, 0>(n, to, a, b);
            if (out_step == sizeof(S) && steps[0] == 0 && y_dense) return two_quickly<0, 1>(n, to, a, b);
        }
        const bool dense = out_step == sizeof(O);
        O* __restrict out = reinterpret_cast<O*>(out_bytes);
        const S* x = reinterpret_cast<const S*>(in[0]);
        const S* y = reinterpret_cast<const S*>(in[1]);
        if (dense && steps[0] == sizeof(S) && steps[1] == sizeof(S)) {
            for (int64_t i = 0; i < n; ++i) out[i] = O(value(x[i], y[i]));
        } else if (dense && steps[0] == sizeof(S) && steps[1] == 0) {
            const S b = *y;
            for (int64_t i = 0; i < n; ++i) out[i] = O(value(x[i], b));
        } else if (dense && steps[0] == 0 && steps[1] == sizeof(S)) {
            const S a = *x;
            for (int64_t i = 0; i < n; ++i) out[i] = O(value(a, y[i]));
        } else {
            for (int64_t i = 0; i < n; ++i)
                *reinterpret_cast<O*>(out_bytes + i * out_step) =
                    O(value(at<S>(in[0], steps[0], i), at<S>(in[1], steps[1], i)));
        }
    }

    static void three(int64_t n, char* out_bytes, int64_t out_step, const char* const* in,
                      const int64_t* steps) {
        using O = Stored<3>;
        if (out_step == sizeof(O) && steps[0] == sizeof(S) && steps[1] == 0 && steps[2] == 0) {
            O* __restrict out = reinterpret_cast<O*>(out_bytes);
            const S* x = reinterpret_cast<const S*>(in[0]);
            const S b = at<S>(in[1], 0, 0);
            const S c = at<S>(in[2], 0, 0);
            for (int64_t i = 0; i < n; ++i) out[i] = O(value(x[i], b, c));
            return;
        }
        if (out_step == sizeof(O) && steps[0] == sizeof(S) && steps[1] == sizeof(S)) {
            O* __restrict out = reinterpret_cast<O*>(out_bytes);
            const S* x = reinterpret_cast<const S*>(in[0]);
            const S* y = reinterpret_cast<const S*>(in[1]);
            const S* z = reinterpret_cast<const S*>(in[2]);
            if (steps[2] == 0) {
                const S c = *z;
                for (int64_t i = 0; i < n; ++i) out[i] = O(value(x[i], y[i], c));
                return;
            }
            if (steps[2] == sizeof(S)) {
                for (int64_t i = 0; i < n; ++i) out[i] = O(value(x[i], y[i], z[i]));
                return;
            }
        }
        for (int64_t i = 0; i < n; ++i)
            *reinterpret_cast<O*>(out_bytes + i * out_step) =
                O(value(at<S>(in[0], steps[0], i), at<S>(in[1], steps[1], i), at<S>(in[2], steps[2], i)));
    }
};

template <typename S>
void widen(int64_t n, const char* x, int64_t step, float* out) {
    if (step == sizeof(S)) {
        const S* const dense = reinterpret_cast<const S*>(x);
        for (int64_t i = 0; i < n; ++i) out[i] = float(dense[i]);
    } else {
        for (int64_t i = 0; i < n; ++i) out[i] = float(at<S>(x, step, i));
    }
}

template <typename S>
void narrow(int64_t n, const float* x, char* out, int64_t step) {
    if (step == sizeof(S)) {
        S* const dense = reinterpret_cast<S*>(out);
        for (int64_t i = 0; i < n; ++i) dense[i] = S(x[i]);
    } else {
        for (int64_t i = 0; i < n; ++i) *reinterpret_cast<S*>(out + i * step) = S(x[i]);
    }
}

/// Loop over halves: blocks of them as floats through the formula's loop for floats, and back. A loop of its
/// own for each formula and layout would be most of the library's code.
template <typename F, typename S, int N>
void loop_by_floats(int64_t n, char* out, int64_t out_step, const char* const* in, const int64_t* steps) {
    using L = Loops<F, float>;
    constexpr bool narrows = std::is_same_v<typename L::template Stored<N>, float>;
    constexpr int64_t block = 256;
    alignas(64) float values[N + 1][block];
    const char* wide[N];
    int64_t wide_steps[N];
    for (int i = 0; i < N; ++i) {
        wide[i] = reinterpret_cast<const char*>(values[i]);
        wide_steps[i] = steps[i] == 0 ? 0 : sizeof(float);
        values[i][0] = n > 0 ? float(at<S>(in[i], 0, 0)) : 0.0f;
    }
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t length = n - begin < block ? n - begin : block;
        for (int i = 0; i < N; ++i)
            if (steps[i] != 0) widen<S>(length, in[i] + begin * steps[i], steps[i], values[i]);
        char* const to = out + begin * out_step;
        char* const result = narrows ? reinterpret_cast<char*>(values[N]) : to;
        const int64_t result_step = narrows ? int64_t(sizeof(float)) : out_step;
        if constexpr (N == 1)
            L::one(length, result, result_step, wide, wide_steps);
        else if constexpr (N == 2)
            L::two(length, result, result_step, wide, wide_steps);
        else
            L::three(length, result, result_step, wide, wide_steps);
        if constexpr (narrows) narrow<S>(length, values[N], to, out_step);
    }
}

template <typename F, typename S>
void fill(LoopRow& row) {
    constexpr Class kind = std::is_same_v<S, Bool> ? booleans
                           : is_half<S>            ? halves
                           : is_real<S>            ? reals
                           : is_complex<S>         ? complexes
                           : std::is_signed_v<S>   ? signeds
                                                   : unsigneds;
    if constexpr (F::types & kind) {
        using L = Loops<F, S>;
        LoopRow::Entry& entry = row.of[int(dtype_of<S>())];
        entry.out = dtype_of<typename L::template Stored<F::arity>>();
        // The neighbour of a half is not that of the float.
        if constexpr (is_half<S> && !std::is_same_v<F, nextafter_formula>)
            entry.loop = loop_by_floats<F, S, F::arity>;
        else if constexpr (F::arity == 1)
            entry.loop = L::one;
        else if constexpr (F::arity == 2)
            entry.loop = L::two;
        else
            entry.loop = L::three;
    }
}

template <typename F>
LoopRow row() {
    LoopRow row;
    fill<F, float>(row);
    fill<F, double>(row);
    fill<F, Half>(row);
    fill<F, BFloat>(row);
    fill<F, int32_t>(row);
    fill<F, int64_t>(row);
#ifdef TENSORA_ALL_TYPES
    fill<F, Bool>(row);
    fill<F, uint8_t>(row);
    fill<F, uint16_t>(row);
    fill<F, uint32_t>(row);
    fill<F, uint64_t>(row);
    fill<F, int8_t>(row);
    fill<F, int16_t>(row);
    fill<F, C64>(row);
    fill<F, C128>(row);
#endif
    return row;
}

}  // namespace

/// Fills the loops that this instruction set has into rows that come in the order of formulas.def.
void fill_rows(LoopRow* rows) {
    int i = 0;
    const auto merge = [&](const LoopRow& row) {
        for (int dtype = 0; dtype < n_dtypes; ++dtype)
            if (row.of[dtype].loop) rows[i].of[dtype] = row.of[dtype];
        ++i;
    };
#define FORMULA(name, ...) merge(row<name##_formula>());
#include "tensora/kernels/formulas.def"
#undef FORMULA
}

}  // namespace accelera::tensora::TENSORA_ISA
