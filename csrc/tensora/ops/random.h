#pragma once

#include <array>

#include "tensora/core/op.h"

/// Random numbers from a counter: element i of a draw depends on nothing but the seed, the number of the draw
/// and i, so that any number of threads makes the same.
namespace accelera::tensora {

/// Philox4x32-10: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A generator's place: its seed, and how many draws it has made.
struct Draw {
    uint64_t seed = 0;
    uint64_t number = 0;
};

/// Evenly distributed in [low, high).
T random_uniform(const Draw& draw, const Dims& shape, DType dtype, double low, double high);
T random_normal(const Draw& draw, const Dims& shape, DType dtype, double mean, double deviation);
/// Integers in [low, low + extent), all equally likely; an extent of 0 stands for 2⁶⁴.
T random_integers(const Draw& draw, const Dims& shape, DType dtype, int64_t low, uint64_t extent);
/// The numbers below n in any order.
T random_permutation(const Draw& draw, int64_t n);

}  // namespace accelera::tensora
