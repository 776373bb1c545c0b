#pragma once

#include <cstdint>

#include "common/matrix_view.h"

namespace accelera::cpu {

/// Element types of the sparse kernel.
enum class SparseItem { f32, f64, c64, c128, i32, i64 };

/// A block of a compressed sparse matrix: rows [row_begin, row_end), columns [col_begin, col_end).
///
/// `by_rows` says whether rows (CSR) or columns (CSC) are compressed; `sorted` whether indices ascend in
/// each.
struct SparseBlock {
    const void* pointers;
    const void* indices;
    const void* values;
    bool wide;  // pointers and indices are int64_t, not int32_t
    bool by_rows;
    bool sorted;
    int64_t row_begin;
    int64_t row_end;
    int64_t col_begin;
    int64_t col_end;
};

/// c (+)= s @ b for a block of a sparse matrix and dense matrices of any strides; integers wrap around.
///
/// Nothing is allocated. `c` overlaps neither operand. `threads` <= 0 means every core this process may use.
void spmm(const SparseBlock& s, const MatrixView& b, const MatrixView& c, SparseItem item, bool accumulate,
          int threads);

}  // namespace accelera::cpu
