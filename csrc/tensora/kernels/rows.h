#pragma once

#include <cstdint>

#include "tensora/core/dtype.h"

namespace accelera::tensora {

// Loops of the fused operations, each over rows [begin, end) of contiguous matrices with `n` columns. Half
// types are computed as float; weights, statistics and losses have the type that is computed in.

struct SoftmaxJob {
    int64_t n;
    const void* x;  ///< of a backward loop: gradient of the result
    const void* y;  ///< of a backward loop: the result
    void* out;
};

/// Loss of each row: (1 - smoothing) w[t] (lse - x[t]) + smoothing / n * sum of w[j] (lse - x[j]), where t is
/// the target and lse = log(sum of exp(x[j])). A row whose target is `ignored` counts for nothing.
struct CrossEntropyJob {
    int64_t n;
    const void* x;
    const int64_t* target;
    const void* weight;  ///< of each class, or null: all 1
    double weight_sum;
    double smoothing;
    int64_t ignored;
    void* lse;         ///< of each row; read by the backward loop
    void* loss;        ///< of each row; of the backward loop: their gradients
    void* row_weight;  ///< w[t]; forward only
    void* gx = nullptr;
};

/// out = (x - mean) * rstd * weight + bias, with rstd = 1 / sqrt(variance + eps) of each row.
struct NormJob {
    int64_t n;
    const void* x;
    const void* weight;  ///< of each column; null: none
    const void* bias;    ///< likewise
    double eps;
    bool centered;  ///< otherwise the mean is taken as 0
    void* out;
    void* mean;
    void* rstd;
};
struct NormBackwardJob {
    int64_t n;
    const void* g;
    const void* x;
    const void* mean;
    const void* rstd;
    const void* weight;  ///< null: none, and then no gradients of weight and bias
    bool centered;
    void* gx;
    void* gw;  ///< these rows' part of the gradients of weight and bias
    void* gb;
};

/// Normalization where a row is `segments` runs of n neighbours with a weight and bias each; row k begins
/// at k * row_step, and its segments lie `step` apart. Of group_norm rows are groups of channels and segments
/// channels; of batch_norm rows are channels and segments samples.
struct ChannelNormJob {
    int64_t n, segments, row_step, step;
    int64_t groups;  ///< of channels, with weights of their own; 0: the weights are the rows'
    const void* x;
    const void* weight;  ///< null: none
    const void* bias;    ///< null: none
    double eps;
    void* mean;
    void* rstd;
    void* out;                ///< of the backward loop: gradient of x
    const void* g = nullptr;  ///< backward only, as all below
    double* sums = nullptr;   ///< of each segment: sums of g and of g * normalized x

    int64_t channel(int64_t row, int64_t segment) const {
        return groups ? row % groups * segments + segment : row;
    }
};

/// One tensor's part of an optimizer's step.
struct SgdStep {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
    bool first;  ///< the buffer is not filled yet
    void* param;
    const void* grad;
    void* buffer;  ///< null: no momentum
};
struct AdamStep {
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2;  ///< 1 - beta^t
    bool decoupled, maximize;
    void* param;
    const void* grad;
    void* mean;
    void* square;
    void* most;  ///< null: no AMSGrad
};

struct RowLoops {
    void (*softmax)(const SoftmaxJob& job, int64_t begin, int64_t end);
    void (*log_softmax)(const SoftmaxJob& job, int64_t begin, int64_t end);
    void (*softmax_backward)(const SoftmaxJob& job, int64_t begin, int64_t end);
    void (*log_softmax_backward)(const SoftmaxJob& job, int64_t begin, int64_t end);
    void (*cross_entropy)(const CrossEntropyJob& job, int64_t begin, int64_t end);
    void (*cross_entropy_backward)(const CrossEntropyJob& job, int64_t begin, int64_t end);
    void (*norm)(const NormJob& job, int64_t begin, int64_t end);
    void (*norm_backward)(const NormBackwardJob& job, int64_t begin, int64_t end);
    void (*channel_norm)(const ChannelNormJob& job, int64_t begin, int64_t end);
    void (*channel_norm_backward)(const ChannelNormJob& job, int64_t begin, int64_t end);
    /// Columns [begin, end) of out = sum of `parts` rows that lie `step` elements apart.
    void (*add_parts)(int64_t parts, int64_t step, const void* x, void* out, int64_t begin, int64_t end);
    void (*sgd)(const SgdStep& step, int64_t begin, int64_t end);
    void (*adam)(const AdamStep& step, int64_t begin, int64_t end);
};

/// For a real floating-point type, and the instruction set of this machine.
const RowLoops& row_loops(DType dtype);

}  // namespace accelera::tensora
