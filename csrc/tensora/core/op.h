#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "tensora/core/memory.h"
#include "tensora/core/tensor.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

/// What an operation is given besides tensors. Which fields an operation reads, its entry says.
struct Params {
    Dims a;
    Dims b;
    Dims c;
    double x = 0;
    double y = 0;
    DType dtype = DType::f32;
    bool flag = false;
    int mode = 0;
};

inline Params flagged(bool flag) {
    Params params;
    params.flag = flag;
    return params;
}

struct Op;
struct LoopRow;
class Backward;

/// One use of an operation: its inputs, and what its rule and kernel make of them.
struct Call {
    struct Output {
        Dims shape;
        DType dtype = DType::f32;
    };
    const Op& op;
    std::span<const T> in;
    const Params& params;
    std::array<Output, 3> made{};         ///< set by the rule
    std::array<T, 3> out{};               ///< allocated from `made`, then filled by the kernel
    const RowsDone* rows_done = nullptr;  ///< told once of each row; only of a call that goes `by_rows`

    const Tensor& input(int i = 0) const { return *in[i]; }
    void make(const Dims& shape, DType dtype, int i = 0) { made[i] = {shape, dtype}; }
};

enum class Family : uint8_t {
    elementwise,
    reduction,
    scan,
    movement,
    indexing,
    contraction,
    fused,
    search,
    linalg,
    creation,
    user  ///< defined by a program
};
const char* name_of(Family family);

/// Type that an operation computes in within a block of mixed precision (see core/autocast.h).
enum class Precision : uint8_t {
    inputs,  ///< as the inputs are
    lower,   ///< the block's: float16 or bfloat16
    single,  ///< float32
    widest   ///< the one of the inputs that holds all others
};
const char* name_of(Precision precision);

/// Entry of the op table: all that the library knows of one primitive operation.
struct Op {
    const char* name;
    Family family;
    int arity;  ///< number of inputs; -1: any
    int outputs = 1;
    uint8_t types = any_type;  ///< classes of types that the inputs may have
    /// Shape and type of each output; raises when the inputs do not fit.
    void (*rule)(Call&) = nullptr;
    /// Fills the outputs, which are contiguous and new.
    void (*cpu)(Call&) = nullptr;
    /// The same for inputs on a CUDA device. Null: they are copied to the CPU, and the results back.
    void (*cuda)(Call&) = nullptr;
    /// Device of the results, where it is not the one of the inputs.
    Device (*device)(const Call&) = nullptr;
    /// Whether the CPU's kernel fills the result by ranges of rows that stay in the cache. Null: never.
    bool (*by_rows)(const Call&) = nullptr;
    /// Layout of the output over the first input's storage, instead of `rule` and `cpu`.
    Layout (*view)(const Call&) = nullptr;
    /// Gives each input its gradient, in terms of operations. Null: the result is not differentiable.
    void (*vjp)(Backward&) = nullptr;
    /// Inputs (bit i) and outputs (bit 8 + i) that `vjp` reads; all others are let go.
    uint32_t saves = 0;
    /// What the inputs are cast to within a block of mixed precision.
    Precision autocast = Precision::inputs;
    /// Operations per element of the larger of inputs and outputs.
    double flops_per_element = 1;
    /// Instead of `flops_per_element`, where it depends on shapes.
    Cost (*cost)(const Call&) = nullptr;
    /// Bound of the bytes that the CPU's kernel allocates and frees again. Null: `tensor_bytes` and some
    /// more, for an elementwise operation those of inputs that it converts.
    int64_t (*workspace)(const Call&) = nullptr;

    /// Loops of an elementwise operation, found when it is entered.
    const LoopRow* loops = nullptr;

    bool inexact_only() const { return !(types & (integers | booleans)); }
};

constexpr uint32_t in0 = 1, in1 = 2, in2 = 4, in3 = 8, in4 = 16, out0 = 1 << 8, out1 = 1 << 9, out2 = 1 << 10;

/// Puts an entry into the table while the library is loaded.
const Op& enter(const Op& op);
/// All entries, by name.
const std::vector<const Op*>& table();
const Op& op_named(const char* name);
Cost cost_of(const Call& call);
/// Bytes of all inputs and outputs, halves as float32.
int64_t tensor_bytes(const Call& call);

/// The device of an operation: the CUDA device of its inputs, to which the others come, or the CPU.
Device device_of(const Op& op, std::span<const T> inputs);
/// A kernel for the CPU on copies of the inputs, and its results on the device.
void compute_on_host(Call& call, Device device);
/// Run an operation, and record it where gradients are wanted. The first output.
T apply(const Op& op, std::span<const T> inputs, const Params& params);
std::array<T, 3> apply_all(const Op& op, std::span<const T> inputs, const Params& params);
template <typename... Ts>
T run(const Op& op, const Params& params, const Ts&... tensors) {
    const T inputs[] = {tensors...};
    return apply(op, inputs, params);
}

template <typename... Ts>
std::array<T, 3> run_all(const Op& op, const Params& params, const Ts&... tensors) {
    const T inputs[] = {tensors...};
    return apply_all(op, inputs, params);
}

extern const Params no_params;

// --- operations that wait

/// Result of an elementwise operation that has not run yet. When somebody needs its elements, it and the
/// operations before it that have not run either run together, block by block, so that what lies between them
/// stays in the cache. Tensors share it with the operations that read it.
class Deferred final : public Counted {
  public:
    /// Another result that has not run, or a tensor, outside of any graph.
    struct Operand {
        Ref<Deferred> deferred;
        T tensor;
    };
    static constexpr int most_operands = 3;
    static constexpr int most_operations = 40;  ///< that run together

    /// What is computed: "where", "cast" or a formula, of elements of the type `operands`.
    struct Work {
        const char* formula;
        DType operands;
        Loop loop;
    };
    Deferred(const Work& work, std::span<const T> inputs, const Call::Output& out, Device device);
    ~Deferred() override;

    const Dims& shape() const { return shape_; }
    DType dtype() const { return dtype_; }
    Device device() const { return device_; }
    bool has_run() const { return bool(storage_); }
    /// Memory with the elements; runs the operation the first time.
    const Ref<Storage>& storage();

    /// Tensors that refer to it: only for their sake its elements are ever stored.
    void add_tensor() { ++tensors_; }
    void drop_tensor() { --tensors_; }
    bool has_tensors() const { return tensors_ > 0; }
    /// A graph has saved it.
    void keep_as_activation() {
        if (role_ == Role::other) role_ = Role::activation;
    }

  private:
    friend class Program;
    void read(int i, const T& tensor);
    void take(const Ref<Storage>& storage);
    void drop_operands();

    Work work_;
    int n_ = 0;
    std::array<Operand, most_operands> operands_;
    Dims shape_;
    DType dtype_;
    Device device_;
    Role role_ = RoleScope::current();  ///< of the memory, when there is some
    Ref<Storage> storage_;
    std::vector<Deferred*> readers_;  ///< results that wait for this one; an entry for each operand
    int tensors_ = 0;
    int uses_ = 0;       ///< programs that computed it without storing it
    uint64_t mark_ = 0;  ///< of the walk that came here last
    int place_ = 0;      ///< in that walk's list
};

/// The call as a deferred result, or null when it has to run now. The rule has run.
T defer(Call& call, Device device);
/// While it lives, nothing that this thread computes is deferred: kernels read it from several threads.
class RunNow {
  public:
    RunNow();
    ~RunNow();
    RunNow(const RunNow&) = delete;

  private:
    bool before_;
};
/// Results of fewer elements are computed at once; fusion is off where it is INT64_MAX.
int64_t fusion_least();
void set_fusion_least(int64_t n);
/// Runs what has not run yet and reads this memory, which is about to be written or lent.
void settle_readers(Storage& storage);

}  // namespace accelera::tensora
