#pragma once

#include <cstdint>
#include <string_view>

#include "tensora/core/dtype.h"

namespace accelera::tensora {

/// out[i] = f(in[0][i], ...) for i below n; steps in bytes.
using Loop = void (*)(int64_t n, char* out, int64_t out_step, const char* const* in, const int64_t* in_steps);

/// Loops of one operation, by the type that its inputs have; null where the operation is not defined.
struct LoopRow {
    struct Entry {
        Loop loop = nullptr;
        DType out = DType::f32;
    };
    Entry of[n_dtypes];
};

/// Loops for the instruction set of this machine.
const LoopRow* loops_named(std::string_view name);
/// Conversion between element types.
Loop cast_loop(DType from, DType to);
/// condition ? x : y, for elements of this type; the first input is bool.
Loop where_loop(DType dtype);
/// Name of the instruction set that was chosen: "x86-64-v3" and so on.
std::string_view instruction_set();

}  // namespace accelera::tensora
