#pragma once

#include <array>
#include <vector>

#include "tensora/core/tensor.h"

/// Kernels for CUDA that core runs: cuda/ defines them, so that core does not depend on it.
namespace accelera::tensora::cuda {

/// Elementwise operations that run as one kernel: each step a formula of elements, or the choice between two
/// ("where"), or a conversion ("cast").
struct FusedProgram {
    struct Step {
        const char* formula;
        DType operands;  ///< type that a formula's inputs have
        DType result;
        std::array<int, 3> sources{};  ///< step i as i, leaf i as -1 - i
        int n_sources = 0;
        const Tensor* stored = nullptr;  ///< where the result goes, if it is kept
    };
    Device device;
    Dims shape;
    std::vector<T> leaves;  ///< broadcast to the shape; one number on the CPU is an argument
    std::vector<Step> steps;
};

void run_fused(const FusedProgram& program);
/// Copy elements to a tensor on a device from one of the same shape there, or from one number on the CPU.
void copy_on_device(const Tensor& from, const Tensor& to);
void fill_on_device(const Tensor& out);

}  // namespace accelera::tensora::cuda
