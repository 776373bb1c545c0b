#pragma once

#include "tensora/functions.h"

/// Parts of matrices in terms of operations, in which gradients are written.
namespace accelera::tensora {

/// Places with column - row <= diagonal.
inline T lower_mask(int64_t rows, int64_t columns, int64_t diagonal) {
    const T mask = Tensor::empty({rows, columns}, DType::bool_);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) mask->data<bool>()[i * columns + j] = j - i <= diagonal;
    return mask;
}

inline T diagonal_mask(int64_t n) {
    return logical_and(lower_mask(n, n, 0), logical_not(lower_mask(n, n, -1)));
}

inline T adjoint(const T& x) { return is(x->dtype(), complexes) ? conj(mt(x)) : mt(x); }
inline T conjugate(const T& x) { return is(x->dtype(), complexes) ? conj(x) : x; }
inline T hermitian(const T& x) { return (x + adjoint(x)) * 0.5; }
inline T skew(const T& x) { return x - adjoint(x); }

/// Matrix with these elements on its diagonal.
inline T diagonal_matrix(const T& x) {
    return where(diagonal_mask(x->shape().back()), unsqueeze(x, -1), like(x, 0));
}
/// Zero but for the diagonal.
inline T diagonal_part(const T& x) { return where(diagonal_mask(x->shape().back()), x, like(x, 0)); }
inline T as_column(const T& x) { return unsqueeze(x, -1); }
inline T as_row(const T& x) { return unsqueeze(x, -2); }
/// A number for each matrix, to be multiplied with its elements.
inline T for_matrices(const T& x) { return as_column(as_column(x)); }

/// x[j] - x[i] at (i, j), and 1 on the diagonal.
inline T gaps(const T& x) {
    const T one = like(x, 1);
    return where(diagonal_mask(x->shape().back()), one, as_row(x) - as_column(x));
}

inline T narrowed(const T& x, int axis, int64_t start, int64_t size) {
    return narrow(x, axis_of(axis, x->dims(), "narrow"), start, size);
}

}  // namespace accelera::tensora
