#pragma once

#include <cstdint>
#include <cstring>

namespace accelera::tensora {

/// Bytes of `n` truths, a bit each.
constexpr int64_t bytes_of_bits(int64_t n) { return (n + 7) / 8; }

/// Truths, a byte each, as bits. False where a byte is neither 0 nor 1; the bits are anything then.
inline bool pack_bits(const char* truths, int64_t n, char* bits) {
    constexpr uint64_t ones = 0x0101010101010101, gather = 0x0102040810204080;
    uint64_t seen = 0, word = 0;
    for (int64_t i = 0; i < n; i += 8) {
        word = 0;
        std::memcpy(&word, truths + i, size_t(n - i < 8 ? n - i : 8));
        seen |= word;
        bits[i / 8] = char((word & ones) * gather >> 56);
    }
    return (seen & ~ones) == 0;
}

/// The truths again.
inline void unpack_bits(const char* bits, int64_t n, char* truths) {
    constexpr uint64_t spread = 0x8040201008040201, ones = 0x0101010101010101;
    for (int64_t i = 0; i < n; i += 8) {
        const uint64_t each = (uint64_t(uint8_t(bits[i / 8])) * ones) & spread;
        const uint64_t word = ((each + 0x7f7f7f7f7f7f7f7f) >> 7) & ones;
        std::memcpy(truths + i, &word, size_t(n - i < 8 ? n - i : 8));
    }
}

}  // namespace accelera::tensora
