#pragma once

/// What the sources for the device use of the standard library, which the run-time compiler does not have.
#define TENSORA_INLINE __device__ __forceinline__
#define TENSORA_UNROLL _Pragma("unroll")
#define TENSORA_SPECIAL __device__ inline
#define TENSORA_ISA device

#ifndef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#endif
#ifndef NAN
#define NAN __builtin_bit_cast(float, 0x7fc00000)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_LN2 0.69314718055994530942
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
#endif

namespace accelera::tensora {

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

namespace math {

// --- types

template <typename A, typename B>
constexpr bool is_same_v = false;
template <typename A>
constexpr bool is_same_v<A, A> = true;

template <bool first, typename A, typename B>
struct conditional {
    using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
    using type = B;
};
template <bool first, typename A, typename B>
using conditional_t = typename conditional<first, A, B>::type;

template <typename T>
constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <typename T>
constexpr bool is_signed_integer = is_same_v<T, signed char> || is_same_v<T, short> || is_same_v<T, int> ||
                                   is_same_v<T, long> || is_same_v<T, long long>;
template <typename T>
constexpr bool is_unsigned_v =
    is_same_v<T, bool> || is_same_v<T, unsigned char> || is_same_v<T, unsigned short> ||
    is_same_v<T, unsigned> || is_same_v<T, unsigned long> || is_same_v<T, unsigned long long>;
template <typename T>
constexpr bool is_integral_v = is_signed_integer<T> || is_unsigned_v<T>;
template <typename T>
constexpr bool is_signed_v = is_signed_integer<T> || is_floating_point_v<T>;

template <typename T>
using make_unsigned_t =
    conditional_t<sizeof(T) == 1, unsigned char,
                  conditional_t<sizeof(T) == 2, unsigned short,
                                conditional_t<sizeof(T) == 4, unsigned, unsigned long long>>>;

template <typename To, typename From>
constexpr __device__ __forceinline__ To bit_cast(const From& from) {
    return __builtin_bit_cast(To, from);
}

template <typename T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
    static constexpr __device__ float infinity() { return INFINITY; }
    static constexpr __device__ float quiet_NaN() { return NAN; }
    static constexpr __device__ float max() { return 0x1.fffffep127f; }
};
template <>
struct numeric_limits<double> {
    static constexpr __device__ double infinity() { return INFINITY; }
    static constexpr __device__ double quiet_NaN() { return NAN; }
    static constexpr __device__ double max() { return 0x1.fffffffffffffp1023; }
};

// --- functions of real numbers

#define TENSORA_OF_ONE(name)                                    \
    TENSORA_INLINE float name(float x) { return ::name##f(x); } \
    TENSORA_INLINE double name(double x) { return ::name(x); }
#define TENSORA_OF_TWO(name)                                                \
    TENSORA_INLINE float name(float x, float y) { return ::name##f(x, y); } \
    TENSORA_INLINE double name(double x, double y) { return ::name(x, y); }
TENSORA_OF_ONE(fabs)
TENSORA_OF_ONE(floor)
TENSORA_OF_ONE(ceil)
TENSORA_OF_ONE(trunc)
TENSORA_OF_ONE(nearbyint)
TENSORA_OF_ONE(sqrt)
TENSORA_OF_ONE(exp)
TENSORA_OF_ONE(exp2)
TENSORA_OF_ONE(expm1)
TENSORA_OF_ONE(log)
TENSORA_OF_ONE(log2)
TENSORA_OF_ONE(log10)
TENSORA_OF_ONE(log1p)
TENSORA_OF_ONE(sin)
TENSORA_OF_ONE(cos)
TENSORA_OF_ONE(tan)
TENSORA_OF_ONE(asin)
TENSORA_OF_ONE(acos)
TENSORA_OF_ONE(atan)
TENSORA_OF_ONE(sinh)
TENSORA_OF_ONE(cosh)
TENSORA_OF_ONE(tanh)
TENSORA_OF_ONE(asinh)
TENSORA_OF_ONE(acosh)
TENSORA_OF_ONE(atanh)
TENSORA_OF_ONE(erf)
TENSORA_OF_ONE(erfc)
TENSORA_OF_ONE(lgamma)
TENSORA_OF_ONE(tgamma)
TENSORA_OF_TWO(pow)
TENSORA_OF_TWO(fmod)
TENSORA_OF_TWO(atan2)
TENSORA_OF_TWO(hypot)
TENSORA_OF_TWO(copysign)
TENSORA_OF_TWO(nextafter)
#undef TENSORA_OF_ONE
#undef TENSORA_OF_TWO
TENSORA_INLINE float abs(float x) { return ::fabsf(x); }
TENSORA_INLINE double abs(double x) { return ::fabs(x); }
TENSORA_INLINE double fma(double x, double y, double z) { return ::fma(x, y, z); }
TENSORA_INLINE float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
TENSORA_INLINE float frexp(float x, int* exponent) { return ::frexpf(x, exponent); }
TENSORA_INLINE double frexp(double x, int* exponent) { return ::frexp(x, exponent); }
template <typename E>
TENSORA_INLINE bool isfinite(E x) {
    return fabs(x) <= numeric_limits<E>::max();
}
template <typename E>
TENSORA_INLINE bool isinf(E x) {
    return fabs(x) == numeric_limits<E>::infinity();
}

// --- complex numbers

template <typename R>
class complex {
  public:
    using value_type = R;
    complex() = default;
    TENSORA_INLINE complex(R real, R imag = R(0)) : real_(real), imag_(imag) {}
    TENSORA_INLINE R real() const { return real_; }
    TENSORA_INLINE R imag() const { return imag_; }
    TENSORA_INLINE complex operator-() const { return {-real_, -imag_}; }

    friend TENSORA_INLINE complex operator+(complex a, complex b) {
        return {a.real_ + b.real_, a.imag_ + b.imag_};
    }
    friend TENSORA_INLINE complex operator-(complex a, complex b) {
        return {a.real_ - b.real_, a.imag_ - b.imag_};
    }
    friend TENSORA_INLINE complex operator*(complex a, complex b) {
        return {a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_};
    }
    friend TENSORA_INLINE complex operator/(complex a, R b) { return {a.real_ / b, a.imag_ / b}; }
    /// R. Smith's division (1962), which does not overflow where the result does not.
    friend TENSORA_INLINE complex operator/(complex a, complex b) {
        if (fabs(b.real_) >= fabs(b.imag_)) {
            const R ratio = b.real_ == R(0) ? R(0) : b.imag_ / b.real_, divisor = b.real_ + b.imag_ * ratio;
            return {(a.real_ + a.imag_ * ratio) / divisor, (a.imag_ - a.real_ * ratio) / divisor};
        }
        const R ratio = b.real_ / b.imag_, divisor = b.real_ * ratio + b.imag_;
        return {(a.real_ * ratio + a.imag_) / divisor, (a.imag_ * ratio - a.real_) / divisor};
    }
    friend TENSORA_INLINE bool operator==(complex a, complex b) {
        return a.real_ == b.real_ && a.imag_ == b.imag_;
    }
    friend TENSORA_INLINE bool operator!=(complex a, complex b) { return !(a == b); }
    TENSORA_INLINE complex& operator+=(complex other) { return *this = *this + other; }
    TENSORA_INLINE complex& operator*=(complex other) { return *this = *this * other; }

  private:
    R real_, imag_;
};

template <typename R>
TENSORA_INLINE R abs(complex<R> z) {
    return hypot(z.real(), z.imag());
}
template <typename R>
TENSORA_INLINE R arg(complex<R> z) {
    return atan2(z.imag(), z.real());
}
template <typename R>
TENSORA_INLINE complex<R> conj(complex<R> z) {
    return {z.real(), -z.imag()};
}
/// i z and -i z
template <typename R>
TENSORA_INLINE complex<R> turned(complex<R> z) {
    return {-z.imag(), z.real()};
}
template <typename R>
TENSORA_INLINE complex<R> turned_back(complex<R> z) {
    return {z.imag(), -z.real()};
}

template <typename R>
TENSORA_INLINE complex<R> exp(complex<R> z) {
    const R size = exp(z.real());
    if (z.imag() == R(0)) return {size, z.imag()};
    return {size * cos(z.imag()), size * sin(z.imag())};
}
template <typename R>
TENSORA_INLINE complex<R> log(complex<R> z) {
    return {log(abs(z)), arg(z)};
}
template <typename R>
TENSORA_INLINE complex<R> log10(complex<R> z) {
    return log(z) / R(2.30258509299404568402);
}
template <typename R>
TENSORA_INLINE complex<R> sqrt(complex<R> z) {
    const R x = z.real(), y = z.imag();
    if (x == R(0) && y == R(0)) return {R(0), y};
    if (isinf(y)) return {fabs(y), y};
    const R large = sqrt((fabs(x) + hypot(x, y)) / 2), small = fabs(y) / (2 * large);
    return x >= R(0) ? complex<R>(large, copysign(small, y)) : complex<R>(small, copysign(large, y));
}
template <typename R>
TENSORA_INLINE complex<R> pow(complex<R> x, complex<R> y) {
    return exp(y * log(x));
}
template <typename R>
TENSORA_INLINE complex<R> sinh(complex<R> z) {
    return {sinh(z.real()) * cos(z.imag()), cosh(z.real()) * sin(z.imag())};
}
template <typename R>
TENSORA_INLINE complex<R> cosh(complex<R> z) {
    return {cosh(z.real()) * cos(z.imag()), sinh(z.real()) * sin(z.imag())};
}
/// W. Kahan, "Branch cuts for complex elementary functions" (1987), as all that follow.
template <typename R>
TENSORA_INLINE complex<R> tanh(complex<R> z) {
    const R x = z.real(), y = z.imag();
    if (fabs(x) > R(22)) return {copysign(R(1), x), 4 * sin(y) * cos(y) * exp(-2 * fabs(x))};
    const R t = tan(y), beta = 1 + t * t, s = sinh(x), rho = sqrt(1 + s * s), divisor = 1 + beta * s * s;
    return {beta * rho * s / divisor, t / divisor};
}
template <typename R>
TENSORA_INLINE complex<R> sin(complex<R> z) {
    return turned_back(sinh(turned(z)));
}
template <typename R>
TENSORA_INLINE complex<R> cos(complex<R> z) {
    return cosh(turned(z));
}
template <typename R>
TENSORA_INLINE complex<R> tan(complex<R> z) {
    return turned_back(tanh(turned(z)));
}
template <typename R>
TENSORA_INLINE complex<R> asin(complex<R> z) {
    const complex<R> below = sqrt(complex<R>(1 - z.real(), -z.imag()));
    const complex<R> above = sqrt(complex<R>(1 + z.real(), z.imag()));
    return {atan2(z.real(), (below * above).real()), asinh((conj(below) * above).imag())};
}
template <typename R>
TENSORA_INLINE complex<R> acos(complex<R> z) {
    const complex<R> below = sqrt(complex<R>(1 - z.real(), -z.imag()));
    const complex<R> above = sqrt(complex<R>(1 + z.real(), z.imag()));
    return {2 * atan2(below.real(), above.real()), asinh((conj(above) * below).imag())};
}
template <typename R>
TENSORA_INLINE complex<R> acosh(complex<R> z) {
    const complex<R> below = sqrt(complex<R>(z.real() - 1, z.imag()));
    const complex<R> above = sqrt(complex<R>(z.real() + 1, z.imag()));
    return {asinh((conj(below) * above).real()), 2 * atan2(below.imag(), above.real())};
}
template <typename R>
TENSORA_INLINE complex<R> asinh(complex<R> z) {
    return turned_back(asin(turned(z)));
}
template <typename R>
TENSORA_INLINE complex<R> atanh(complex<R> z) {
    const R x = z.real(), y = z.imag();
    return {log1p(4 * x / ((1 - x) * (1 - x) + y * y)) / 4, atan2(2 * y, (1 - x) * (1 + x) - y * y) / 2};
}
template <typename R>
TENSORA_INLINE complex<R> atan(complex<R> z) {
    return turned_back(atanh(turned(z)));
}

}  // namespace math
}  // namespace accelera::tensora
