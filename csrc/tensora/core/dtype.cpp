#include "tensora/core/dtype.h"

#include <algorithm>

namespace accelera::tensora {

std::optional<DType> dtype_named(std::string_view name) {
    for (int i = 0; i < n_dtypes; ++i)
        if (name_of(DType(i)) == name) return DType(i);
    return std::nullopt;
}

namespace {

DType promote_integers(DType a, DType b) {
    const bool same_sign = is(a, signeds) == is(b, signeds);
    if (same_sign) return std::max(a, b);
    const DType sign = is(a, signeds) ? a : b;
    const DType none = is(a, signeds) ? b : a;
    const int64_t bytes = std::max(size_of(sign), 2 * size_of(none));
    if (bytes > 8) return DType::f64;  // uint64 with a signed one, as NumPy
    return bytes == 2 ? DType::i16 : bytes == 4 ? DType::i32 : bytes == 8 ? DType::i64 : DType::i8;
}

DType promote_slowly(DType a, DType b) {
    if (a == b) return a;
    if (a > b) std::swap(a, b);
    if (a == DType::bool_) return b;
    if (is(a, integers)) return is(b, integers) ? promote_integers(a, b) : b;
    if (a == DType::f16 && b == DType::bf16) return DType::f32;
    if (a == DType::f64 && b == DType::c64) return DType::c128;
    return b;
}

}  // namespace

DType promote(DType a, DType b) {
    if (a == b) return a;
    static const auto table = [] {
        struct Table {
            DType of[n_dtypes][n_dtypes];
        } table;
        for (int i = 0; i < n_dtypes; ++i)
            for (int j = 0; j < n_dtypes; ++j) table.of[i][j] = promote_slowly(DType(i), DType(j));
        return table;
    }();
    return table.of[int(a)][int(b)];
}

DType real_of(DType dtype) {
    return dtype == DType::c64 ? DType::f32 : dtype == DType::c128 ? DType::f64 : dtype;
}

DType complex_of(DType dtype) {
    return dtype == DType::f64 || dtype == DType::c128 ? DType::c128 : DType::c64;
}

}  // namespace accelera::tensora
