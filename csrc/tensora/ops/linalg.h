#pragma once

#include "tensora/core/op.h"

/// Linear algebra of batches of matrices: the last two axes are rows and columns. Elements are float32,
/// float64, complex64 or complex128.
namespace accelera::tensora {

/// Lower triangle L with L Lᴴ = x; only the lower triangle of x is read.
T cholesky(const T& x);
/// The matrix X with a X = b, for square `a`; batches are broadcast.
T solve(const T& a, const T& b);
/// The same for a triangular `a`, of which only that triangle is read.
T solve_triangular(const T& a, const T& b, bool upper);
T inv(const T& x);
T det(const T& x);
/// Sign (of modulus 1, or 0) and logarithm of the modulus of the determinant.
std::array<T, 3> slogdet(const T& x);
/// Q and R; with `complete` Q is square.
std::array<T, 3> qr(const T& x, bool complete);
/// U, singular values (descending) and Vᴴ; with `full` U and V are square.
std::array<T, 3> svd(const T& x, bool full);
T svdvals(const T& x);
/// Eigenvalues (ascending) and eigenvectors of a Hermitian matrix, of which the lower triangle is read.
std::array<T, 3> eigh(const T& x);
T eigvalsh(const T& x);

/// Elements with column - row <= diagonal, zeros elsewhere; and those with column - row >= diagonal.
T lower_triangle(const T& x, int64_t diagonal);
T upper_triangle(const T& x, int64_t diagonal);

}  // namespace accelera::tensora
