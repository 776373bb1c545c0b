#pragma once

/// C++ types of elements: halves, traits, conversions. For the CPU and for CUDA, as all that says `math::`,
/// which is the standard library there and device_math.cuh here.
#ifdef TENSORA_DEVICE
#include "tensora/base/device_math.cuh"
#else
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>
namespace accelera::tensora {
namespace math = std;
}
/// Always inlined: the same source is compiled for several instruction sets, and a copy that is not inlined
/// would be shared between them.
#define TENSORA_INLINE __attribute__((always_inline)) inline
#define TENSORA_UNROLL _Pragma("GCC unroll 16")
/// Of functions that are not worth a copy in each loop.
#define TENSORA_SPECIAL inline
#endif

namespace accelera::tensora {

/// What a set of element types is made of; values may be or-ed.
enum Class : uint8_t { booleans = 1, unsigneds = 2, signeds = 4, halves = 8, reals = 16, complexes = 32 };
constexpr uint8_t integers = unsigneds | signeds;
constexpr uint8_t floats = halves | reals;
constexpr uint8_t inexact = floats | complexes;
constexpr uint8_t numbers = integers | inexact;
constexpr uint8_t any_type = numbers | booleans;
constexpr uint8_t ordered = integers | floats | booleans;

/// Bits of an IEEE binary16 as a float. Plain arithmetic, so that loops of it are vectorised.
TENSORA_INLINE float float_of_half(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const uint32_t rest = bits & 0x7fffu;
    // Shifted into place, the exponent is too small by 112; a product with 2^112 also makes subnormals right.
    const float small = math::bit_cast<float>(rest << 13) * 0x1p112f;
    const uint32_t magnitude = math::bit_cast<uint32_t>(small) | (rest >= 0x7c00u ? 0x7f800000u : 0u);
    return math::bit_cast<float>(magnitude | sign);
}

/// Nearest binary16, ties to even; too large becomes infinite.
TENSORA_INLINE uint16_t half_of_float(float value) {
    const uint32_t bits = math::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    // Normal: round at bit 13. Subnormal: adding 0.5 leaves the rounded mantissa in the lowest bits.
    const uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    const float shifted = math::bit_cast<float>(rest < 0x38800000u ? rest : 0u) + 0.5f;
    const uint32_t subnormal = math::bit_cast<uint32_t>(shifted) - 0x3f000000u;
    uint32_t result = rest < 0x38800000u ? subnormal : normal;
    result = rest >= 0x477ff000u ? 0x7c00u : result;
    result = rest > 0x7f800000u ? 0x7e00u : result;
    return uint16_t(sign | result);
}

TENSORA_INLINE float float_of_bfloat(uint16_t bits) { return math::bit_cast<float>(uint32_t(bits) << 16); }

TENSORA_INLINE uint16_t bfloat_of_float(float value) {
    const uint32_t bits = math::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? ((bits >> 16) | 0x40u) : rounded);
}

struct Half {
    uint16_t bits = 0;
    Half() = default;
    TENSORA_INLINE Half(float value) : bits(half_of_float(value)) {}
    TENSORA_INLINE operator float() const { return float_of_half(bits); }
};

struct BFloat {
    uint16_t bits = 0;
    BFloat() = default;
    TENSORA_INLINE BFloat(float value) : bits(bfloat_of_float(value)) {}
    TENSORA_INLINE operator float() const { return float_of_bfloat(bits); }
};

/// Element of a bool tensor. Memory of other libraries may hold any byte; every byte but 0 is true. Reading
/// such a byte as a C++ bool is undefined behavior.
struct Bool {
    uint8_t byte = 0;
    Bool() = default;
    TENSORA_INLINE Bool(bool value) : byte(value) {}
    TENSORA_INLINE operator bool() const { return byte != 0; }
};

using C64 = math::complex<float>;
using C128 = math::complex<double>;

template <typename T>
constexpr bool is_half = math::is_same_v<T, Half> || math::is_same_v<T, BFloat>;
template <typename T>
constexpr bool is_complex = math::is_same_v<T, C64> || math::is_same_v<T, C128>;
template <typename T>
constexpr bool is_real = math::is_floating_point_v<T>;
template <typename T>
constexpr bool is_integer = math::is_integral_v<T> && !math::is_same_v<T, bool>;

/// The type that elements are computed in: float for halves, bool for Bool, otherwise their own type.
template <typename T>
using Computed =
    math::conditional_t<is_half<T>, float, math::conditional_t<math::is_same_v<T, Bool>, bool, T>>;

/// `value` cut to an integer. NaN, and what does not fit, are the smallest integer, as on x86-64; a GPU's own
/// conversion has the nearest one, and 0 of NaN.
template <typename From>
TENSORA_INLINE int64_t integer_of(From value) {
#ifdef TENSORA_DEVICE
    const bool fits = value >= From(-0x1p63) && value < From(0x1p63);
    return fits ? int64_t(value) : -0x7fffffffffffffff - 1;
#else
    return int64_t(value);
#endif
}

/// `value` as a `To`, in the way that casts between element types go.
template <typename To, typename From>
TENSORA_INLINE To cast_value(From value) {
    if constexpr (is_half<From>) {
        return cast_value<To>(float(value));
    } else if constexpr (math::is_same_v<From, Bool>) {
        return cast_value<To>(bool(value));
    } else if constexpr (is_complex<To>) {
        using Part = typename To::value_type;
        if constexpr (is_complex<From>)
            return To(Part(value.real()), Part(value.imag()));
        else
            return To(Part(value), Part(0));
    } else if constexpr (is_complex<From>) {
        if constexpr (math::is_same_v<To, bool> || math::is_same_v<To, Bool>)
            return value != From(0);
        else
            return cast_value<To>(value.real());
    } else if constexpr (math::is_same_v<To, bool> || math::is_same_v<To, Bool>) {
        return value != From(0);
    } else if constexpr (is_half<To>) {
        return To(float(value));
    } else if constexpr (is_integer<To> && is_real<From>) {
        // Straight to a narrow or unsigned type is undefined when it does not fit.
        if constexpr (math::is_same_v<To, uint64_t>)
            return value >= From(0x1p63) ? To(integer_of(value - From(0x1p63))) ^ (To(1) << 63)
                                         : To(integer_of(value));
        else
            return To(integer_of(value));
    } else {
        return To(value);
    }
}

template <typename K>
TENSORA_INLINE bool is_nan(K x) {
    return x != x;
}

/// Order of elements that are not NaN; complex ones by their real part, then by the imaginary one.
template <typename K>
TENSORA_INLINE bool is_less(K a, K b) {
    if constexpr (is_complex<K>)
        return a.real() < b.real() || (a.real() == b.real() && a.imag() < b.imag());
    else
        return a < b;
}

/// The same with NaN behind all others.
template <typename K>
TENSORA_INLINE bool comes_before(K a, K b) {
    return is_nan(a) ? false : is_nan(b) || is_less(a, b);
}

}  // namespace accelera::tensora
