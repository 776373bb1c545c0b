#pragma once

#include "tensora/base/element.h"

#ifndef TENSORA_ISA
#define TENSORA_ISA base
#endif

/// exp, log and their kin for float and double, without branches, so that loops of them are vectorised. At
/// most 3 units in the last place from the exact value.
namespace accelera::tensora::TENSORA_ISA {

/// a b + c, rounded once where the processor can. Written out wherever it matters: compilers that fuse on
/// their own do it differently in a loop's vectors and in what is left of it, and an element's bits would
/// depend on its place.
template <typename E>
TENSORA_INLINE E mul_add(E a, E b, E c) {
#if defined(TENSORA_DEVICE) || defined(__FP_FAST_FMA)
    return math::fma(a, b, c);
#else
    return a * b + c;
#endif
}

template <typename E>
struct Bits;
template <>
struct Bits<float> {
    using Int = int32_t;
    static constexpr int mantissa = 23;
    static constexpr Int bias = 127;
    static constexpr float magic = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer
    static constexpr float ln2_high = 0x1.62ep-1f, ln2_low = 0x1.0bfbe8p-15f;
    static constexpr float exp_low = -104, exp_high = 89;
    static constexpr int exp_terms = 7, log_terms = 5;
};
template <>
struct Bits<double> {
    using Int = int64_t;
    static constexpr int mantissa = 52;
    static constexpr Int bias = 1023;
    static constexpr double magic = 6755399441055744.0;  // 1.5 x 2^52
    static constexpr double ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b39p-40;
    static constexpr double exp_low = -746, exp_high = 710;
    static constexpr int exp_terms = 13, log_terms = 11;
};

/// 2^n for an integer n that `shifted` = n + magic holds in its lowest bits.
template <typename E>
TENSORA_INLINE E power_of_two(E shifted) {
    using B = Bits<E>;
    using Int = typename B::Int;
    using Unsigned = math::make_unsigned_t<Int>;
    return math::bit_cast<E>(
        Int((Unsigned(math::bit_cast<Int>(shifted)) + Unsigned(B::bias)) << B::mantissa));
}

/// e^r - 1 for |r| <= ln(2) / 2, by its Taylor series.
template <typename E>
TENSORA_INLINE E expm1_near_zero(E r) {
    constexpr double inverse[] = {1,
                                  1.0 / 2,
                                  1.0 / 6,
                                  1.0 / 24,
                                  1.0 / 120,
                                  1.0 / 720,
                                  1.0 / 5040,
                                  1.0 / 40320,
                                  1.0 / 362880,
                                  1.0 / 3628800,
                                  1.0 / 39916800,
                                  1.0 / 479001600,
                                  1.0 / 6227020800};
    constexpr int terms = Bits<E>::exp_terms;
    E sum = E(inverse[terms - 1]);
    TENSORA_UNROLL
    for (int k = terms - 2; k >= 1; --k) sum = mul_add(sum, r, E(inverse[k]));
    return mul_add(sum, r * r, r);
}

/// x = n ln(2) + r. `shifted` is n + magic.
template <typename E>
TENSORA_INLINE E reduced(E x, E& n, E& shifted) {
    using B = Bits<E>;
    shifted = mul_add(x, E(1.4426950408889634074), E(B::magic));
    n = shifted - B::magic;
    return mul_add(-n, E(B::ln2_low), mul_add(-n, E(B::ln2_high), x));
}

template <typename E>
TENSORA_INLINE E fast_exp(E given) {
    using B = Bits<E>;
    E x = given < B::exp_low ? B::exp_low : given;
    x = x > B::exp_high ? B::exp_high : x;
    E n, shifted;
    const E r = reduced(x, n, shifted);
    // In two steps: 2^n alone may be too large or too small.
    const E half = mul_add(n, E(0.5), E(B::magic));
    const E rest = (n - (half - B::magic)) + B::magic;
    const E value = (expm1_near_zero(r) + E(1)) * power_of_two(half) * power_of_two(rest);
    return given != given ? given : value;
}

/// e^x for x <= 0; zero where it would be less than the smallest normal number.
template <typename E>
TENSORA_INLINE E exp_down(E given) {
    constexpr E low = math::is_same_v<E, float> ? E(-87.3) : E(-708.3);
    const E x = given < low ? low : given;
    E n, shifted;
    const E r = reduced(x, n, shifted);
    const E value = (expm1_near_zero(r) + E(1)) * power_of_two(shifted);
    return given < low ? E(0) : value;
}

template <typename E>
TENSORA_INLINE E fast_expm1(E given) {
    using B = Bits<E>;
    E x = given < E(-50) ? E(-50) : given;
    x = x > B::exp_high ? B::exp_high : x;
    E n, shifted;
    const E r = reduced(x, n, shifted);
    const E half = mul_add(n, E(0.5), E(B::magic));
    const E rest = (n - (half - B::magic)) + B::magic;
    const E first = power_of_two(half), second = power_of_two(rest);
    const E p = expm1_near_zero(r);
    // 2^n (1 + p) - 1, where 2^n - 1 is exact when n is small.
    const E small = mul_add(p * first, second, mul_add(first, second, E(-1)));
    const E large = mul_add((p + E(1)) * first, second, E(-1));
    const E value = n > E(B::mantissa) ? large : small;
    return (given != given) | (given == E(0)) ? given : value;
}

template <typename E>
TENSORA_INLINE E fast_log(E given) {
    using B = Bits<E>;
    using Int = typename B::Int;
    constexpr E smallest_normal = math::is_same_v<E, float> ? E(0x1p-126) : E(0x1p-1022);
    constexpr E scale = math::is_same_v<E, float> ? E(0x1p25) : E(0x1p54);
    const bool tiny = given < smallest_normal;
    const Int bits = math::bit_cast<Int>(tiny ? given * scale : given);
    // Mantissa in [sqrt(1/2), sqrt(2)): subtract sqrt(1/2) from the bits, so that the exponent is the one of
    // the range.
    constexpr Int root = math::bit_cast<Int>(E(0.70710678118654752440));
    const Int above = bits - root;
    const Int exponent = above >> B::mantissa;
    const E m = math::bit_cast<E>(Int(bits - (exponent << B::mantissa)));
    // The exponent as a floating-point number, without a conversion of 64 bits.
    const E n = math::bit_cast<E>(Int(math::bit_cast<Int>(B::magic) + exponent)) - B::magic -
                (tiny ? (math::is_same_v<E, float> ? E(25) : E(54)) : E(0));
    const E s = (m - E(1)) / (m + E(1));
    const E z = s * s;
    E sum = E(1.0 / (2 * B::log_terms + 1));
    TENSORA_UNROLL
    for (int k = B::log_terms - 1; k >= 1; --k) sum = mul_add(sum, z, E(1.0 / (2 * k + 1)));
    // 2 atanh(s) = 2 s + 2 s z sum; and 2 s = (m - 1) - s (m - 1), whose first part is exact.
    const E f = m - E(1);
    const E correction = s * mul_add(E(2) * z, sum, -f);
    E value = mul_add(n, E(B::ln2_high), f + mul_add(n, E(B::ln2_low), correction));
    value = given == E(0) ? -E(INFINITY) : value;
    value = given < E(0) ? E(NAN) : value;
    return (given == E(INFINITY)) | (given != given) ? given : value;
}

template <typename E>
TENSORA_INLINE E fast_log1p(E x) {
    const E u = E(1) + x;
    const E value = fast_log(u) * (x / (u - E(1)));
    const E inside = u == E(0) ? -E(INFINITY) : value;
    return (u == E(1)) | (x == E(INFINITY)) ? x : inside;
}

template <typename E>
TENSORA_INLINE E fast_tanh(E x) {
    E y = math::fabs(x);
    y = y > E(22) ? E(22) : y;
    // e^(2 y) - 1, as in fast_expm1; one power is enough.
    E n, shifted;
    const E r = reduced(y + y, n, shifted);
    const E power = power_of_two(shifted);
    const E t = mul_add(expm1_near_zero(r), power, power - E(1));
    const E magnitude = t / (t + E(2));
    // With the sign of x, by the bits: a choice would not be vectorised.
    using Int = typename Bits<E>::Int;
    constexpr Int sign = math::bit_cast<Int>(-E(0));
    return math::bit_cast<E>(Int(math::bit_cast<Int>(magnitude) | (math::bit_cast<Int>(x) & sign)));
}

/// Error function of a float: below 1 an odd polynomial, above 1 - e^q(x), with the nearest polynomials in
/// Chebyshev's sense. Of a double the C library's.
template <typename E>
TENSORA_INLINE E fast_erf(E x) {
    if constexpr (!math::is_same_v<E, float>) {
        return math::erf(x);
    } else {
        constexpr float odd[] = {1.1283792257f,   -0.3761263788f,   0.11283782870f,  -0.02686543763f,
                                 0.005221053492f, -0.000848439639f, 0.000112682537f, -9.67359028e-06f};
        constexpr float exponent[] = {0.00028745853f,  -1.1300996542f,    -0.63205701113f,
                                      -0.10986018181f, 0.02629471757f,    -0.004714576993f,
                                      0.000587088172f, -4.489322964e-05f, 1.577663511e-06f};
        float y = math::fabs(x);
        y = y > 4.0f ? 4.0f : y;
        const float z = y * y;
        float small = odd[7], q = exponent[8];
        TENSORA_UNROLL
        for (int k = 6; k >= 0; --k) small = mul_add(small, z, odd[k]);
        TENSORA_UNROLL
        for (int k = 7; k >= 0; --k) q = mul_add(q, y, exponent[k]);
        const float magnitude = y < 1.0f ? y * small : 1.0f - fast_exp(q);
        constexpr int32_t sign = math::bit_cast<int32_t>(-0.0f);
        return math::bit_cast<float>(math::bit_cast<int32_t>(magnitude) |
                                     (math::bit_cast<int32_t>(x) & sign));
    }
}

template <typename E>
TENSORA_INLINE E fast_sigmoid(E x) {
    return E(1) / (E(1) + fast_exp(-x));
}

// --- special functions, computed as doubles; none is vectorised ------------------------------------------

/// e^-|x| I_order(x) of the modified Bessel functions of order 0 and 1: the power series, whose terms are all
/// positive, or the asymptotic one (Abramowitz and Stegun 9.6.10, 9.7.1).
TENSORA_SPECIAL double bessel_i_scaled(int order, double given) {
    const double x = math::fabs(given), sign = order == 1 && given < 0 ? -1 : 1;
    double term = 1, sum = 1;
    if (x <= 36) {
        const double y = x * x / 4;
        for (int k = 1; term > 1e-18 * sum; ++k) sum += term *= y / (double(k) * double(k + order));
        return sign * sum * math::exp(-x) * (order ? x / 2 : 1);
    }
    for (int k = 1; k < 40 && math::fabs(term) > 1e-18; ++k) {
        const double odd = 2 * k - 1;
        sum += term *= (odd * odd - 4 * order) / (8 * k * x);
    }
    return x == INFINITY ? 0 : sign * sum / (2.50662827463100050242 * math::sqrt(x));
}
TENSORA_SPECIAL double bessel_i(int order, double x) {
    const double root = math::exp(math::fabs(x) / 2);
    return bessel_i_scaled(order, x) * root * root;  // e^|x| overflows before the function does
}

/// e^(x^2) erfc(x), beyond 10 by its asymptotic series (Abramowitz and Stegun 7.1.23).
TENSORA_SPECIAL double scaled_erfc(double x) {
    if (x < 10) {
        // x^2 as a sum of two numbers: the power keeps all digits.
        const double high = x * x, low = high < INFINITY ? math::fma(x, x, -high) : 0;
        return math::exp(high) * math::erfc(x) * (1 + low);
    }
    double term = 1, sum = 1;
    for (int k = 1; k < 30 && math::fabs(term) > 1e-18; ++k) sum += term *= -(2 * k - 1) / (2 * x * x);
    return sum / 1.77245385090551602730 / x;
}

TENSORA_SPECIAL double log_of_normal(double x) {
    return x < -1 ? math::log(scaled_erfc(-x * M_SQRT1_2) / 2) - x * x / 2
                  : math::log1p(-math::erfc(x * M_SQRT1_2) / 2);
}

/// Quantile of the normal distribution: Abramowitz and Stegun 26.2.23, then steps of Halley's method.
TENSORA_SPECIAL double normal_quantile(double p) {
    if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
    if (p == 0.5) return 0;
    if (p > 0.5) return -normal_quantile(1 - p);
    const double t = math::sqrt(-2 * math::log(p));
    double y =
        (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
    for (int i = 0; i < 3; ++i) {
        // Distance from p over the density; by logarithms where the density is close to the smallest numbers.
        const double miss = p > 1e-280
                                ? (math::erfc(-y * M_SQRT1_2) / 2 - p) * math::exp(y * y / 2)
                                : scaled_erfc(-y * M_SQRT1_2) / 2 - math::exp(math::log(p) + y * y / 2);
        const double step = miss * 2.50662827463100050242;
        y -= step / (1 + y * step / 2);
    }
    return y;
}

/// q^(s - 1) times the zeta function of Hurwitz for positive finite q: the sum of its first terms, and
/// Euler's and Maclaurin's formula. At most some 60 terms are added: while their base is below 12 + s, they
/// shrink quickly. Nothing overflows or underflows before the zeta function itself does.
TENSORA_SPECIAL double scaled_zeta(double s, double q) {
    constexpr double bernoulli[] = {1.0 / 12,
                                    -1.0 / 720,
                                    1.0 / 30240,
                                    -1.0 / 1209600,
                                    1.0 / 47900160,
                                    -691.0 / 1307674368000.0,
                                    1.0 / 74724249600.0,
                                    -3617.0 / 10670622842880000.0};
    double sum = 0, term = 1, at = q;
    for (int k = 1; at < 12 + s; ++k) {
        sum += term / q;
        if (term / q <= 1e-18 * sum) return sum;
        term = math::exp(-s * math::log1p(k / q));
        at = q + k;
    }
    sum += term * (at / q / (s - 1) + 0.5 / q);
    double factor = s * term / at / q;
    for (int j = 0; j < 8; ++j) {
        sum += bernoulli[j] * factor;
        factor *= (s + 2 * j + 1) / at * ((s + 2 * j + 2) / at);
    }
    return sum;
}

TENSORA_SPECIAL double positive_zeta(double s, double q) { return math::pow(q, 1 - s) * scaled_zeta(s, q); }

TENSORA_SPECIAL double hurwitz_zeta(double s, double q) {
    if (s == 1) return INFINITY;
    if (!(s > 1) || q != q) return NAN;
    if (s == INFINITY) return q < 1 ? INFINITY : q == 1 ? 1 : 0;
    if (q > 0) return q == INFINITY ? 0 : positive_zeta(s, q);
    if (q == -INFINITY) return INFINITY;
    const double steps = -math::floor(q), f = q + steps;
    if (f == 0) return INFINITY;
    if (s != math::floor(s)) return NAN;
    // The terms of negative numbers mirrored: sums that do not grow with them. Those of odd s may cancel.
    const double positive = positive_zeta(s, f), mirrored = positive_zeta(s, 1 - f);
    const double rest = positive_zeta(s, steps + 1 - f);
    return math::fmod(s, 2) == 0 ? (positive + mirrored) - rest : (positive - mirrored) + rest;
}

}  // namespace accelera::tensora::TENSORA_ISA
