#include "cuda/igemm.h"

#include "common/error.h"

namespace accelera::cuda {

bool compiled() { return false; }

void igemm(const MatrixView&, const MatrixView&, const MatrixView&, int, bool, void*) {
    throw DeviceError(
        "[igemm] this build has no CUDA kernels; reinstall with ACCELERA_CUDA=ON and nvcc on the PATH");
}

}  // namespace accelera::cuda
