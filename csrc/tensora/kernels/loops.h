#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "tensora/base/dtype.h"

/// Loops that are compiled once for each instruction set, as tables of those for this machine.
namespace accelera::tensora {

/// Callback of a kernel for rows [begin, end) of its result that are filled; called on any thread.
using RowsDone = std::function<void(int64_t begin, int64_t end)>;

// --- elementwise operations

/// out[i] = f(in[0][i], ...) for i below n; steps in bytes.
using Loop = void (*)(int64_t n, char* out, int64_t out_step, const char* const* in, const int64_t* in_steps);

/// Loops of one operation, by the type that its inputs have; null where the operation is not defined.
struct LoopRow {
    struct Entry {
        Loop loop = nullptr;
        DType out = DType::f32;
    };
    Entry of[n_dtypes];
};

/// Loops for the instruction set of this machine.
const LoopRow* loops_named(std::string_view name);
/// Conversion between element types.
Loop cast_loop(DType from, DType to);
/// condition ? x : y, for elements of this type; the first input is bool.
Loop where_loop(DType dtype);
/// Name of the instruction set that was chosen: "x86-64-v3" and so on.
std::string_view instruction_set();

// --- reductions

enum class Reduction : uint8_t { sum, prod, max, min, any, all };
constexpr int n_reductions = 6;

/// Parts of one reduction of one element type. The accumulator has a type of its own, `acc_size` bytes long:
/// sums of floats are kept in double.
struct Reducer {
    int64_t acc_size = 0;
    void (*start)(int64_t n, char* acc) = nullptr;
    /// acc = acc + x[0] + x[1] ...
    void (*line)(int64_t n, const char* x, int64_t step, char* acc) = nullptr;
    /// acc[i] = acc[i] + x[i]
    void (*rows)(int64_t n, const char* x, int64_t step, char* acc) = nullptr;
    /// acc[i] = acc[i] + other[i]
    void (*merge)(int64_t n, const char* other, char* acc) = nullptr;
    /// out[i] = acc[i] as the type of the result
    void (*finish)(int64_t n, const char* acc, char* out) = nullptr;
    DType out = DType::f32;
};

struct Reducers {
    Reducer of[n_reductions][n_dtypes];
};

/// For the instruction set of this machine.
const Reducers& reducers();

// --- rows: softmax, normalization, losses, steps of optimizers

// Loops of the fused operations, each over rows [begin, end) of contiguous matrices with `n` columns. Half
// types are computed as float; weights, statistics and losses have the type that is computed in.

struct SoftmaxJob {
    int64_t n;
    const void* x;  ///< of a backward loop: gradient of the result
    const void* y;  ///< of a backward loop: the result
    void* out;
};

/// Loss of each row: (1 - smoothing) w[t] (lse - x[t]) + smoothing / n * sum of w[j] (lse - x[j]), where t is
/// the target and lse = log(sum of exp(x[j])). A row whose target is `ignored`, or no class, counts for
/// nothing.
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

    /// Class of a row, or -1. Memory of targets may be shared with another library: it is read once.
    int64_t class_of(int64_t row) const {
        const int64_t value = __atomic_load_n(target + row, __ATOMIC_RELAXED);
        return value == ignored || value < 0 || value >= n ? -1 : value;
    }
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

// --- convolution and attention

/// c = a b, or c += a b, for matrices whose rows may lie anywhere: a patch of an image is a row that begins
/// elsewhere in it, and need not be copied.
template <typename E>
struct Product {
    int64_t rows, columns, depth;
    const E* a;
    const int64_t* a_at;  ///< a[i, k] is a[a_at[i] + k * a_step]
    int64_t a_step;
    const E* b;
    const int64_t* b_at;  ///< b[k, j] is b[b_at[k] + j]
    E* c;
    int64_t c_row;  ///< c[i, j] is c[i * c_row + j]
    bool add;
};

/// Scores of one query with the keys of a block, still to be multiplied with `factor`.
template <typename E>
struct ScoreRow {
    E* scores;
    E factor;
    int64_t n;       ///< keys that the query sees
    int64_t padded;  ///< scores behind them become weights of 0
    const E* mask;   ///< added to the scores; may be null
    int64_t mask_step;
};

/// Loops of convolution and attention for the instruction set of this machine.
template <typename E>
struct WindowLoops {
    /// Columns are read and written in multiples of this.
    int64_t lanes;
    void (*multiply)(const Product<E>& product);
    /// Scores become weights e^(score - most), where `most` is the largest so far; `total` is the sum of all
    /// weights so far. The factor that earlier weights shrink by.
    E (*soften)(const ScoreRow<E>& row, E& most, E& total);
    /// Scores become weights e^(score - log_sum), and slopes[j] = weight * (slopes[j] - mean).
    void (*weigh)(const ScoreRow<E>& row, E log_sum, E mean, E* slopes);
    /// to[i] = from[i] * factor; both may be the same
    void (*scale)(int64_t n, const E* from, E factor, E* to);
    /// to[j * to_row + i] = from[i * from_row + j] for i below `rows` and j below `columns`
    void (*turn)(int64_t rows, int64_t columns, const E* from, int64_t from_row, E* to, int64_t to_row);
};

template <typename E>
const WindowLoops<E>& window_loops();

}  // namespace accelera::tensora
