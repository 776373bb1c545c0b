#pragma once

#include "tensora/base/element.h"
#include "tensora/kernels/math.h"

/// Functions of one element. The name space is that of the instruction set they are compiled for.
#ifndef TENSORA_ISA
#define TENSORA_ISA base
#endif

namespace accelera::tensora::TENSORA_ISA {

template <typename E>
concept Complex = is_complex<E>;
template <typename E>
concept Real = math::is_floating_point_v<E>;
template <typename E>
concept Integer = math::is_integral_v<E>;

template <typename E>
TENSORA_INLINE auto abs_of(E x) {
    if constexpr (math::is_unsigned_v<E>)
        return x;
    else if constexpr (Integer<E>)
        return E(x < 0 ? -x : x);
    else
        return math::abs(x);
}

template <typename E>
TENSORA_INLINE E sign_of(E x) {
    if constexpr (Complex<E>)
        return x == E(0) ? E(0) : x / math::abs(x);
    else if constexpr (Real<E>)
        return x != x ? x : E(x > E(0)) - E(x < E(0));
    else
        return E((x > E(0)) - (x < E(0)));
}

template <typename E>
TENSORA_INLINE E conj_of(E x) {
    if constexpr (Complex<E>)
        return math::conj(x);
    else
        return x;
}
template <typename E>
TENSORA_INLINE auto real_part(E x) {
    if constexpr (Complex<E>)
        return x.real();
    else
        return x;
}

template <typename E>
TENSORA_INLINE bool isnan_of(E x) {
    if constexpr (Integer<E>)
        return false;
    else
        return x != x;
}
template <typename E>
TENSORA_INLINE bool isinf_of(E x) {
    if constexpr (Complex<E>)
        return math::isinf(x.real()) || math::isinf(x.imag());
    else if constexpr (Real<E>)
        return math::fabs(x) == math::numeric_limits<E>::infinity();
    else
        return false;
}
template <typename E>
TENSORA_INLINE bool isfinite_of(E x) {
    if constexpr (Complex<E>)
        return math::isfinite(x.real()) && math::isfinite(x.imag());
    else if constexpr (Real<E>)
        return math::fabs(x) <= math::numeric_limits<E>::max();
    else
        return true;
}
template <typename E>
TENSORA_INLINE bool signbit_of(E x) {
    if constexpr (Real<E>) {
        // Kept from the vectoriser, with which gcc 12 fails here.
        auto bits = math::bit_cast<math::conditional_t<math::is_same_v<E, float>, int32_t, int64_t>>(x);
#ifndef TENSORA_DEVICE
        __asm__("" : "+r"(bits));
#endif
        return bits < 0;
    } else {
        return x < E(0);
    }
}
template <typename E>
TENSORA_INLINE auto angle_of(E x) {
    if constexpr (Complex<E>)
        return math::arg(x);
    else
        return x < E(0) ? E(M_PI) : x != x ? x : E(0);
}
template <typename E>
TENSORA_INLINE E invert_of(E x) {
    if constexpr (math::is_same_v<E, bool>)
        return !x;
    else
        return E(~x);
}

/// f of a real number; integers stay as they are.
template <typename E, typename Function>
TENSORA_INLINE E if_real(E x, Function f) {
    if constexpr (Integer<E>)
        return x;
    else
        return f(x);
}
template <typename E>
TENSORA_INLINE E round_of(E x) {
    if constexpr (Integer<E>)
        return x;
    else if constexpr (Complex<E>)
        return E(math::nearbyint(x.real()), math::nearbyint(x.imag()));
    else
        return math::nearbyint(x);
}

template <typename E>
TENSORA_INLINE E exp_of(E x) {
    if constexpr (Complex<E>)
        return math::exp(x);
    else
        return fast_exp(x);
}
template <typename E>
TENSORA_INLINE E log_of(E x) {
    if constexpr (Complex<E>)
        return math::log(x);
    else
        return fast_log(x);
}
template <typename E>
TENSORA_INLINE E sqrt_of(E x) {
    return math::sqrt(x);
}
template <typename E>
TENSORA_INLINE E tanh_of(E x) {
    if constexpr (Complex<E>) {
        using R = typename E::value_type;
        // The array API wants the limit's sign from the imaginary part itself, C that of sin(2 b).
        if (math::isinf(x.real()) && math::isfinite(x.imag()))
            return E(math::copysign(R(1), x.real()), math::copysign(R(0), x.imag()));
        return math::tanh(x);
    } else {
        return fast_tanh(x);
    }
}
template <typename E>
TENSORA_INLINE E expm1_of(E x) {
    if constexpr (Complex<E>) {
        using R = typename E::value_type;
        const R a = math::expm1(x.real()), b = x.imag();
        if (b == 0) return E(a + R(0), b);  // never -0
        if (math::isinf(x.real()) && !math::isfinite(b))
            return x.real() < 0 ? E(-1, 0) : E(x.real(), math::numeric_limits<R>::quiet_NaN());
        // (e^a - 1) cos b + (cos b - 1): both small where x is small.
        const R half = math::sin(b / 2);
        return E(a * math::cos(b) - 2 * half * half, math::exp(x.real()) * math::sin(b));
    } else {
        return fast_expm1(x);
    }
}
template <typename E>
TENSORA_INLINE E log1p_of(E x) {
    if constexpr (Complex<E>) {
        using R = typename E::value_type;
        const R a = x.real(), b = x.imag();
        const bool small = math::abs(a) < R(0.5) && math::abs(b) < R(0.5);
        const R magnitude = small ? math::log1p(a * (2 + a) + b * b) / 2 : math::log(math::abs(E(1 + a, b)));
        return E(magnitude, math::atan2(b, 1 + a));
    } else {
        return fast_log1p(x);
    }
}
template <typename E>
TENSORA_INLINE E log2_of(E x) {
    if constexpr (Complex<E>)
        return math::log(x) / typename E::value_type(0.69314718055994530942);
    else
        return math::log2(x);
}
template <typename E>
TENSORA_INLINE E sigmoid_of(E x) {
    return E(1) / (E(1) + exp_of(-x));
}

/// NaN where one of them is NaN.
template <typename E>
TENSORA_INLINE E clip_of(E x, E low, E high) {
    const E raised = x < low ? low : x;
    const E inside = raised > high ? high : raised;
    const E limited = high != high ? high : inside;
    return low != low ? low : limited;
}
/// Share of the standard normal distribution that lies below x.
template <typename E>
TENSORA_INLINE E normal_share(E x) {
    return E(0.5) * (E(1) + fast_erf(x * E(M_SQRT1_2)));
}
template <typename E>
TENSORA_INLINE E gelu_slope(E x) {
    return normal_share(x) + x * fast_exp(E(-0.5) * x * x) * E(0.39894228040143267794);
}
/// The same by D. Hendrycks and K. Gimpel's approximation (2016).
template <typename E>
TENSORA_INLINE E tanh_share(E x) {
    return E(0.5) * (E(1) + fast_tanh(E(0.79788456080286535588) * (x + E(0.044715) * x * x * x)));
}
template <typename E>
TENSORA_INLINE E gelu_tanh_slope(E x) {
    const E p = tanh_share(x);
    const E limit = E(100);  // beyond it p (1 - p) is 0, and the square of x might be infinite
    const E near = x > limit ? limit : x < -limit ? -limit : x;
    x = x - x == E(0) ? near : x;
    return p + E(2) * x * p * (E(1) - p) * E(0.79788456080286535588) * (E(1) + E(0.134145) * x * x);
}
template <typename E>
TENSORA_INLINE E silu_slope(E x) {
    const E p = fast_sigmoid(x);
    return p * (E(1) + x * (E(1) - p));
}
/// x tanh(log(1 + e^x)), where tanh(log(1 + w)) = (w² + 2 w) / (w² + 2 w + 2). D. Misra (2019).
template <typename E>
TENSORA_INLINE E mish_of(E x) {
    const E w = fast_exp(x > E(30) ? E(30) : x);
    const E t = w * (w + E(2));
    return x * (t / (t + E(2)));
}
/// Cross entropy of the probability x of a target y; logarithms are at least -100, as in PyTorch.
template <typename E>
TENSORA_INLINE E binary_cross_entropy_of(E x, E y) {
    const E positive = fast_log(x), negative = fast_log1p(-x);
    return (y - E(1)) * (negative < E(-100) ? E(-100) : negative) -
           y * (positive < E(-100) ? E(-100) : positive);
}
/// Denominator of its slope: a saturated probability has a large slope instead of an infinite one, so that
/// its product with the slope of a saturated sigmoid, which is 0, is 0.
template <typename E>
TENSORA_INLINE E binary_variance(E x) {
    const E variance = (E(1) - x) * x;
    return variance < E(1e-12) ? E(1e-12) : variance;
}
template <typename E>
TENSORA_INLINE E softplus_of(E x, E beta, E threshold) {
    const E scaled = x * beta;
    const E value = fast_log1p(fast_exp(scaled)) / beta;
    return scaled > threshold ? x : value;
}

template <typename E>
TENSORA_INLINE E lgamma_of(E x) {
#ifdef TENSORA_DEVICE
    return math::lgamma(x);
#else
    int sign;
    if constexpr (math::is_same_v<E, float>)
        return lgammaf_r(x, &sign);
    else
        return lgamma_r(x, &sign);
#endif
}

/// Derivative of lgamma: recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18).
template <typename E>
TENSORA_INLINE E digamma_of(E given) {
    double x = double(given);
    double result = 0;
    if (x == 0) return math::copysign(E(INFINITY), -given);
    if (x < 0) {
        if (x == math::floor(x)) return E(NAN);
        result =
            -M_PI / math::tan(M_PI * (x - math::floor(x + 0.5)));  // the tangent of a large angle is inexact
        x = 1 - x;
    }
    while (x < 10) {
        result -= 1 / x;
        x += 1;
    }
    const double y = 1 / (x * x);
    const double series =
        y *
        (1.0 / 12 - y * (1.0 / 120 -
                         y * (1.0 / 252 - y * (1.0 / 240 - y * (5.0 / 660 - y * (691.0 / 32760 - y / 12))))));
    return E(result + math::log(x) - 0.5 / x - series);
}

/// n! zeta(n + 1, x). By logarithms where the factorial overflows or the zeta function underflows: the
/// product may do neither.
TENSORA_SPECIAL double gamma_times_zeta(double n, double x) {
    const double zeta = hurwitz_zeta(n + 1, x);
    if ((n < 171 && math::fabs(zeta) > 1e-290) || !(x > 0 && x < INFINITY)) return math::tgamma(n + 1) * zeta;
    return math::exp(lgamma_of(n + 1) - n * math::log(x) + math::log(scaled_zeta(n + 1, x)));
}

/// The n-th derivative of digamma.
template <typename E>
TENSORA_INLINE E polygamma_of(E n, E x) {
    if (n == E(0)) return digamma_of(x);
    if (!(n > E(0) && n == math::floor(n)) || n > math::numeric_limits<E>::max()) return E(NAN);
    const double size = gamma_times_zeta(double(n), double(x));
    return E(math::fmod(n, E(2)) == E(0) ? -size : size);
}

template <typename E>
TENSORA_INLINE E sinc_of(E x) {
    const E angle = x * E(M_PI);
    return x == E(0) ? E(1) : math::sin(angle) / angle;
}

/// Exponent of a number whose fraction is at least 1/2 and less than 1.
template <typename E>
TENSORA_INLINE int32_t exponent_of(E x) {
    int exponent = 0;
    (void)math::frexp(x, &exponent);
    return isfinite_of(x) ? exponent : 0;
}

/// Inverse of erf: Giles's approximation (2010), then Halley's method: two steps, some more close to 1.
template <typename E>
TENSORA_INLINE E erfinv_of(E given) {
    const double x = double(given);
    if (!(math::fabs(x) < 1)) return math::fabs(x) == 1 ? math::copysign(E(INFINITY), given) : E(NAN);
    double w = -math::log((1 - x) * (1 + x));
    double p;
    if (w < 5) {
        w -= 2.5;
        p = 1.50140941 +
            w * (0.246640727 +
                 w * (-0.00417768164 +
                      w * (-0.00125372503 +
                           w * (0.00021858087 +
                                w * (-4.39150654e-06 +
                                     w * (-3.5233877e-06 + w * (3.43273939e-07 + w * 2.81022636e-08)))))));
    } else {
        w = math::sqrt(w) - 3;
        p = 2.83297682 +
            w * (1.00167406 +
                 w * (0.00943887047 +
                      w * (-0.0076224613 +
                           w * (0.00573950773 +
                                w * (-0.00367342844 +
                                     w * (0.00134934322 + w * (0.000100950558 - w * 0.000200214257)))))));
    }
    double y = p * x, step = y;
    for (int i = 0; i < 12 && math::fabs(step) > 1e-9 * math::fabs(y); ++i) {
        // Close to 0 by erf and close to 1 by erfc: neither difference cancels.
        const double size = math::fabs(x);
        const double miss =
            size < 0.5 ? math::erf(math::fabs(y)) - size : (1 - size) - math::erfc(math::fabs(y));
        step = (x < 0 ? -miss : miss) / (M_2_SQRTPI * math::exp(-y * y));
        y -= step / (1 + y * step);
    }
    return E(y);
}

/// Quotient that belongs to the remainder of `fmod`, for infinities and for quotients beyond the integers
/// that E represents exactly.
template <typename E>
TENSORA_INLINE E floor_divide_slowly(E x, E y) {
    if (y == E(0)) return x / y;
    const E r = math::fmod(x, y);
    E q = (x - r) / y;
    if (r != E(0) && (r < E(0)) != (y < E(0))) q -= E(1);
    if (q == E(0)) return math::copysign(E(0), x / y);
    const E whole = math::floor(q);
    return q - whole > E(0.5) ? whole + E(1) : whole;
}

/// Quotient by division, rounded, and correction by the sign of the exact remainder: x / y may round up to
/// the next integer.
template <Real E>
TENSORA_INLINE E floor_divide_quickly(E x, E y) {
    const E q = math::floor(x / y);
    const E r = math::fma(-q, y, x);
    return (r != E(0)) & ((r < E(0)) ^ (y < E(0))) ? q - E(1) : q;
}
/// Whether `floor_divide_quickly` does not apply: to infinities, NaN, and quotients close to those beyond
/// which E has no fractions.
template <Real E>
TENSORA_INLINE bool floor_divide_is_slow(E x, E y) {
    constexpr E largest_exact = math::is_same_v<E, float> ? E(0x1p22) : E(0x1p51);
    return !(math::fabs(x / y) < largest_exact) | !(math::fabs(y) <= math::numeric_limits<E>::max());
}

template <typename E>
TENSORA_INLINE E floor_divide_of(E x, E y) {
    if constexpr (Integer<E>) {
        if (y == E(0)) return E(0);
        if constexpr (math::is_signed_v<E>) {
            if (y == E(-1)) return E(0 - math::make_unsigned_t<E>(x));
            const E q = E(x / y);
            return E(q - ((x % y != 0) && ((x < 0) != (y < 0))));
        }
        return E(x / y);
    } else {
        return floor_divide_is_slow(x, y) ? floor_divide_slowly(x, y) : floor_divide_quickly(x, y);
    }
}
/// Remainder with the sign of the divisor, as Python's.
template <typename E>
TENSORA_INLINE E remainder_of(E x, E y) {
    if constexpr (Integer<E>) {
        if (y == E(0)) return E(0);
        if constexpr (math::is_signed_v<E>) {
            if (y == E(-1)) return E(0);
            const E r = E(x % y);
            return E(r != 0 && ((r < 0) != (y < 0)) ? r + y : r);
        }
        return E(x % y);
    } else {
        const E r = math::fmod(x, y);
        if (r == E(0)) return math::copysign(E(0), y);
        return (r < E(0)) != (y < E(0)) ? r + y : r;
    }
}
template <typename E>
TENSORA_INLINE E fmod_of(E x, E y) {
    if constexpr (Integer<E>) {
        if (y == E(0)) return E(0);
        if constexpr (math::is_signed_v<E>)
            if (y == E(-1)) return E(0);
        return E(x % y);
    } else {
        return math::fmod(x, y);
    }
}

/// Greatest common divisor, by the remainders of Euclid.
template <typename E>
TENSORA_INLINE E gcd_of(E x, E y) {
    while (y != E(0)) {
        const E rest = fmod_of(x, y);
        x = y;
        y = rest;
    }
    return E(abs_of(x));
}
template <typename E>
TENSORA_INLINE E lcm_of(E x, E y) {
    const E divisor = gcd_of(x, y);
    return divisor == E(0) ? E(0) : E(abs_of(E(x / divisor * y)));
}

template <typename E>
TENSORA_INLINE E pow_of(E x, E y) {
    if constexpr (Integer<E>) {
        if constexpr (math::is_signed_v<E>)
            if (y < 0) return x == E(1) ? E(1) : x == E(-1) ? E(y & 1 ? -1 : 1) : E(0);
        using U = uint64_t;
        U base = U(x), result = 1;
        for (U exponent = U(y); exponent; exponent >>= 1, base *= base)
            if (exponent & 1) result *= base;
        return E(result);
    } else if constexpr (Complex<E>) {
        if (y == E(0)) return E(1);
        if (x == E(0)) return y.real() > 0 && y.imag() == 0 ? E(0) : math::pow(x, y);
        return math::pow(x, y);
    } else {
        return y == E(2) ? x * x : math::pow(x, y);
    }
}

/// Neighbour of x towards y, in the type that is stored.
template <typename S, typename E>
TENSORA_INLINE E nextafter_of(E x, E y) {
    if constexpr (!is_half<S>) {
        return math::nextafter(x, y);
    } else {
        if (x != x || y != y) return x + y;
        if (x == y) return y;
        S result(x);
        if (x == 0)
            result.bits = y > 0 ? 0x0001 : 0x8001;
        else
            result.bits = uint16_t(result.bits + ((x < y) == (x > 0) ? 1 : -1));
        return E(result);
    }
}

template <typename E>
TENSORA_INLINE E logaddexp_of(E x, E y) {
    if (x == y) return x + E(0.69314718055994530942);
    const E high = x > y ? x : y;
    const E low = x > y ? y : x;
    return x != x || y != y ? x + y : high + math::log1p(math::exp(low - high));
}

template <typename E>
TENSORA_INLINE E left_shift_of(E x, E y) {
    const bool fits = y >= E(0) && uint64_t(y) < 8 * sizeof(E);
    return fits ? E(uint64_t(x) << uint64_t(y)) : E(0);
}
template <typename E>
TENSORA_INLINE E right_shift_of(E x, E y) {
    const bool fits = y >= E(0) && uint64_t(y) < 8 * sizeof(E);
    return fits ? E(x >> y) : x < E(0) ? E(-1) : E(0);
}

/// The formulas, each with the types it is for. `S` is the type that is stored.
#define FORMULA(name, inputs, types_, ...)                         \
    struct name##_formula {                                        \
        static constexpr uint8_t types = types_;                   \
        static constexpr int arity = inputs;                       \
        template <typename S, typename E>                          \
        static TENSORA_INLINE auto of(E x, E y = E(), E z = E()) { \
            (void)y, (void)z;                                      \
            return __VA_ARGS__;                                    \
        }                                                          \
    };
#include "tensora/kernels/formulas.def"
#undef FORMULA

}  // namespace accelera::tensora::TENSORA_ISA
