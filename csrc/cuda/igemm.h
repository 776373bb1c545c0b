#pragma once

namespace accelera::cuda {

/// Whether this build holds the CUDA kernels.
bool compiled();

}  // namespace accelera::cuda
