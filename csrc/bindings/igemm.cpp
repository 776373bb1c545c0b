#include <nanobind/nanobind.h>

#include "cuda/igemm.h"

namespace nb = nanobind;

void init_igemm(nb::module_& module) {
    module.def("cuda_compiled", &accelera::cuda::compiled, "Whether the CUDA kernels are in this build.");
}
