#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tensora/base/element.h"

namespace accelera::tensora {

/// Element types. The order within a kind is by size: promotion relies on it.
enum class DType : uint8_t { bool_, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64, c64, c128 };
constexpr int n_dtypes = 15;

struct DTypeInfo {
    std::string_view name;
    int64_t size;
    Class kind;
};
inline constexpr DTypeInfo dtype_infos[n_dtypes] = {
    {"bool", 1, booleans},    {"uint8", 1, unsigneds},     {"uint16", 2, unsigneds},
    {"uint32", 4, unsigneds}, {"uint64", 8, unsigneds},    {"int8", 1, signeds},
    {"int16", 2, signeds},    {"int32", 4, signeds},       {"int64", 8, signeds},
    {"float16", 2, halves},   {"bfloat16", 2, halves},     {"float32", 4, reals},
    {"float64", 8, reals},    {"complex64", 8, complexes}, {"complex128", 16, complexes},
};
inline const DTypeInfo& info(DType dtype) { return dtype_infos[int(dtype)]; }
inline int64_t size_of(DType dtype) { return info(dtype).size; }
inline std::string_view name_of(DType dtype) { return info(dtype).name; }
inline bool is(DType dtype, uint8_t classes) { return (info(dtype).kind & classes) != 0; }
std::optional<DType> dtype_named(std::string_view name);

/// The array API's type promotion, with float16 and bfloat16 meeting in float32, and any integer with any
/// inexact type in the latter.
DType promote(DType a, DType b);
/// The real type of a complex one, and of any other itself.
DType real_of(DType dtype);
/// The complex type with parts of (at least) this one.
DType complex_of(DType dtype);

template <typename T>
struct Tag {
    using type = T;
};

/// Call `function` with the Tag of the C++ type of `dtype`.
template <typename Function>
decltype(auto) visit(DType dtype, Function&& function) {
    switch (dtype) {
        case DType::bool_:
            return function(Tag<Bool>());
        case DType::u8:
            return function(Tag<uint8_t>());
        case DType::u16:
            return function(Tag<uint16_t>());
        case DType::u32:
            return function(Tag<uint32_t>());
        case DType::u64:
            return function(Tag<uint64_t>());
        case DType::i8:
            return function(Tag<int8_t>());
        case DType::i16:
            return function(Tag<int16_t>());
        case DType::i32:
            return function(Tag<int32_t>());
        case DType::i64:
            return function(Tag<int64_t>());
        case DType::f16:
            return function(Tag<Half>());
        case DType::bf16:
            return function(Tag<BFloat>());
        case DType::f32:
            return function(Tag<float>());
        case DType::f64:
            return function(Tag<double>());
        case DType::c64:
            return function(Tag<C64>());
        default:
            return function(Tag<C128>());
    }
}

}  // namespace accelera::tensora
