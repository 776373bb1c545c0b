#pragma once

#include <cstdint>

#include "common/matrix_view.h"

namespace accelera::cpu {

/// c = a @ b, or c += a @ b, for (m, k) @ (k, n) -> (m, n), wrapping around like NumPy.
///
/// `width` is the item size in bytes (1, 2, 4 or 8): modulo 2^(8 width) signed and unsigned products are the
/// same bits. `c` overlaps neither operand. `threads` <= 0 means every core this process may use.
void igemm(const MatrixView& a, const MatrixView& b, const MatrixView& c, int width, bool accumulate,
           int threads);

/// The most bytes `igemm` allocates while it runs.
int64_t igemm_workspace_bytes(int width, int threads);

}  // namespace accelera::cpu
