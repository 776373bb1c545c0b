#pragma once

#include <cstdint>

namespace accelera {

/// A matrix as it lies: nothing owned, any strides (in elements; negative or zero are fine to read).
struct MatrixView {
    void* data;
    int64_t rows;
    int64_t cols;
    int64_t row_stride;
    int64_t col_stride;
};

inline MatrixView transposed(const MatrixView& x) {
    return {x.data, x.cols, x.rows, x.col_stride, x.row_stride};
}

}  // namespace accelera
