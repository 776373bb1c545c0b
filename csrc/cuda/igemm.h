#pragma once

#include "common/matrix_view.h"

namespace accelera::cuda {

/// Whether this build holds the CUDA kernels.
bool compiled();

/// c = a @ b, or c += a @ b, on the current device, wrapping around like NumPy.
///
/// The views point to device memory; `width` is the item size in bytes (1, 2, 4 or 8) and `stream` a
/// cudaStream_t. Returns once the kernel is queued.
void igemm(const MatrixView& a, const MatrixView& b, const MatrixView& c, int width, bool accumulate,
           void* stream);

}  // namespace accelera::cuda
