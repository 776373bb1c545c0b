#pragma once

#include <cstdint>

#include "tensora/core/dtype.h"

namespace accelera::tensora {

enum class Reduction : uint8_t { sum, prod, max, min, any, all };
constexpr int n_reductions = 6;

/// Parts of one reduction of one element type. The accumulator has a type of its own, `acc_size` bytes long:
/// sums of floats are kept in double.
struct Reducer {
    int64_t acc_size = 0;
    void (*start)(int64_t n, char* acc) = nullptr;
    /// acc = acc + x[0] + x[1] ...
    void (*line)(int64_t n, const char* x, int64_t step, char* acc) = nullptr;
    /// acc[i] = acc[i] + x[i]
    void (*rows)(int64_t n, const char* x, int64_t step, char* acc) = nullptr;
    /// acc[i] = acc[i] + other[i]
    void (*merge)(int64_t n, const char* other, char* acc) = nullptr;
    /// out[i] = acc[i] as the type of the result
    void (*finish)(int64_t n, const char* acc, char* out) = nullptr;
    DType out = DType::f32;
};

struct Reducers {
    Reducer of[n_reductions][n_dtypes];
};

/// For the instruction set of this machine.
const Reducers& reducers();

}  // namespace accelera::tensora
