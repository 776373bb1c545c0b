#pragma once

#include <cstdint>
#include <mutex>

#include "tensora/core/dtype.h"

namespace accelera::tensora {

/// Load the OpenBLAS at this path, and let its jobs run on the pool's threads. Raises when it is no OpenBLAS.
void load_blas(const char* path);
/// Let it use as many threads as the pool has.
void set_blas_threads();
/// A function of the library, as "dgesdd_"; raises when there is none.
void* blas_function(const char* name);

/// The right to call the library, held by one thread at a time: parallel sections of OpenBLAS that overlap
/// use the same buffers, and then wait for each other for ever. Nests. A piece of the pool needs none, since
/// the operation that it is a part of holds it.
class BlasTurn {
  public:
    BlasTurn();
    ~BlasTurn();
    BlasTurn(const BlasTurn&) = delete;

  private:
    std::recursive_mutex* held_;
};

/// While it lives, the library stays on its callers' threads: they are pieces of an operation on the pool.
class BlasOnOneThread {
  public:
    BlasOnOneThread();
    ~BlasOnOneThread();

  private:
    BlasTurn turn_;
};

/// A matrix in memory: `rows` x `columns` with neighbours in a row `column_step` elements apart.
struct MatrixView {
    const void* data;
    int64_t rows, columns;
    int64_t row_step, column_step;

    bool by_rows() const { return column_step == 1 && row_step >= columns; }
    bool by_columns() const { return row_step == 1 && column_step >= rows; }
};

/// c = a b, contiguous, or c += a b; `a` and `b` lie by rows or by columns, and have elements of float32,
/// float64 or a complex type.
void gemm(DType dtype, const MatrixView& a, const MatrixView& b, void* c, bool add = false);

}  // namespace accelera::tensora
