#pragma once

#include <vector>

#include "tensora/core/op.h"
#include "tensora/cuda/compiler.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora::cuda {

/// Elementwise operations that run as one kernel: each step a formula of elements, or the choice between two
/// ("where"), or a conversion ("cast").
struct FusedProgram {
    struct Step {
        const char* formula;
        DType operands;               ///< type that a formula's inputs have
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
void copy_elements(const Tensor& from, const Tensor& to);
void fill_zeros(const Tensor& out);

// --- kernels of the op table's entries: the call's outputs are there, its inputs on the same device

void sum(Call& call);
void prod(Call& call);
void max(Call& call);
void min(Call& call);
void any(Call& call);
void all(Call& call);
void argmax(Call& call);
void argmin(Call& call);
void cumsum(Call& call);
void cumprod(Call& call);

void take(Call& call);
void take_add(Call& call);
void put(Call& call);
void take_along(Call& call);

void softmax(Call& call);
void log_softmax(Call& call);
void softmax_backward(Call& call);
void log_softmax_backward(Call& call);
void cross_entropy(Call& call);
void cross_entropy_backward(Call& call);
void layer_norm(Call& call);
void layer_norm_backward(Call& call);

void matmul(Call& call);
void linear(Call& call);

/// One step over a parameter; all that it points to lies on `device`.
void sgd_step(const Tensor& param, const Tensor& grad, const Tensor* buffer, const SgdStep& options);
struct AdamTensors {
    const Tensor *param, *grad, *mean, *square, *most;  ///< the last null: no AMSGrad
};
void adam_step(const AdamTensors& tensors, const AdamStep& options);

}  // namespace accelera::tensora::cuda
