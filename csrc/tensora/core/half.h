#pragma once

#include <bit>
#include <cstdint>

/// Always inlined: the same source is compiled for several instruction sets, and a copy that is not inlined
/// would be shared between them.
#define TENSORA_INLINE __attribute__((always_inline)) inline

namespace accelera::tensora {

/// Bits of an IEEE binary16 as a float. Plain arithmetic, so that loops of it are vectorised.
TENSORA_INLINE float float_of_half(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const uint32_t rest = bits & 0x7fffu;
    // Shifted into place, the exponent is too small by 112; a product with 2^112 also makes subnormals right.
    const float small = std::bit_cast<float>(rest << 13) * 0x1p112f;
    const uint32_t magnitude = std::bit_cast<uint32_t>(small) | (rest >= 0x7c00u ? 0x7f800000u : 0u);
    return std::bit_cast<float>(magnitude | sign);
}

/// Nearest binary16, ties to even; too large becomes infinite.
TENSORA_INLINE uint16_t half_of_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    // Normal: round at bit 13. Subnormal: adding 0.5 leaves the rounded mantissa in the lowest bits.
    const uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    const float shifted = std::bit_cast<float>(rest < 0x38800000u ? rest : 0u) + 0.5f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3f000000u;
    uint32_t result = rest < 0x38800000u ? subnormal : normal;
    result = rest >= 0x477ff000u ? 0x7c00u : result;
    result = rest > 0x7f800000u ? 0x7e00u : result;
    return uint16_t(sign | result);
}

TENSORA_INLINE float float_of_bfloat(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

TENSORA_INLINE uint16_t bfloat_of_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
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

}  // namespace accelera::tensora
