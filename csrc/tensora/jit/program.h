#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tensora/core/fused_loop.h"
#include "tensora/core/op.h"

namespace accelera::tensora {

/// Tensor that a captured step reads or writes: elements of a buffer.
struct CapturedOperand {
    int32_t buffer = -1;
    Layout layout;
    DType dtype = DType::f32;
};

/// One operation of a captured program: an entry of the op table on known operands.
struct CapturedStep {
    const Op* op;
    Params params;
    std::vector<CapturedOperand> inputs, outputs;
    bool in_place = false;        ///< writes its result into memory that holds something already
    int32_t draw = -1;            ///< of random numbers: which of the program's draws
    int64_t workspace_bytes = 0;  ///< most that the kernel allocated beside its results
    /// Elementwise operations that run together, in place of `op` or as its epilogue.
    std::shared_ptr<const FusedLoop> fused{};
    /// Of a product with an epilogue: how many inputs are the product's, and its output is the first. The
    /// others are the loop's, which runs over rows while they are in the cache.
    size_t own_inputs = 0;
    bool has_epilogue() const { return own_inputs > 0; }
};

/// Memory of a captured program.
struct CapturedBuffer {
    enum class Kind : uint8_t {
        argument,  ///< of a tensor that each call is given
        outside,   ///< of a tensor that was there before, as parameters are; read and written where it lies
        gradient,  ///< of the gradient that a leaf has when the call begins
        constant,  ///< elements that the function made without the op table; never written
        computed   ///< by the program's steps
    };
    Kind kind;
    int64_t nbytes = 0;
    Device device{};
    int32_t argument = -1;  ///< that it belongs to, or whose gradient it is
    int64_t before = 0;  ///< elements between the start of the buffer and the first element of its argument
    T tensor{};          ///< of what is outside or constant; the leaf of a gradient
    bool kept = false;   ///< outlives the call: part of a result or of a gradient
};

/// Gradient of a leaf when a part of the program has ended: a tensor that the program computed, or none.
struct CapturedGradient {
    T leaf;
    int32_t argument = -1;  ///< the leaf is this argument
    bool was_none = false;  ///< the leaf must have no gradient when the program begins
    CapturedOperand value;  ///< of no buffer where there is none
};

/// Elements that the function read as Python numbers or arrays; a replay requires the same ones.
struct CapturedRead {
    T tensor;
    std::vector<char> bytes;
};

/// Leaf whose missing or present gradient the function saw.
struct CapturedGradientRead {
    T leaf;
    int32_t argument = -1;  ///< the leaf is this argument
    bool is_none = false;
};

struct CapturedResult {
    CapturedOperand value;
    T tensor;  ///< itself the result, where no step computes it
    int32_t argument = -1;
};

/// Memory for what ends with the call: places in one arena.
struct ArenaPlan {
    int64_t border = 0;       ///< between the two blocks of an arena; one would be rounded up by more
    int64_t nbytes = 0;       ///< as the allocator counts them
    int64_t least_bytes = 0;  ///< of buffers that hold something at the same time
};

/// What a function did with tensors when it was called: steps of the op table that run again with other
/// arguments, without Python.
struct CapturedProgram {
    /// A part after which the program waits for something that Python does.
    struct Part {
        size_t end = 0;  ///< first step that is no longer of it
        std::vector<CapturedGradient> gradients;
    };
    std::vector<CapturedBuffer> buffers;
    std::vector<CapturedStep> steps;
    std::vector<Part> parts;
    /// Of the parts from this one on, a call runs at most one.
    size_t first_alternative = std::numeric_limits<size_t>::max();
    std::vector<CapturedResult> results;
    std::vector<CapturedRead> reads;
    std::vector<CapturedGradientRead> gradient_reads;
    Device device{};  ///< the CUDA device of the memory that is on one

    // --- the memory plan

    std::vector<int64_t> places;  ///< of computed buffers that end with the call, in their arena; -1: none
    ArenaPlan arena, device_arena;
    int64_t kept_bytes = 0;
    int64_t workspace_bytes = 0;  ///< of the step that needs most; only what is the CPU's
    int64_t arena_bytes() const { return arena.nbytes + device_arena.nbytes; }
    int64_t least_bytes() const { return arena.least_bytes + device_arena.least_bytes; }
    /// Most bytes that a call allocates.
    int64_t peak_bytes() const { return arena_bytes() + kept_bytes + workspace_bytes; }
    /// Whether elements that the function read outside of the program are what they were.
    bool reads_hold() const;
    /// For readers: a line for each step.
    std::string words() const;
};

/// Steps between which a buffer holds something; -1: none.
struct Lifetime {
    int first = -1, last = -1;
    bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};
/// Of each buffer.
std::vector<Lifetime> lifetimes(const CapturedProgram& program);
/// Keeps the steps of which `keep` says so, and the parts' ends where they were.
template <typename Keep>
void filter_steps(CapturedProgram& program, Keep keep) {
    std::vector<size_t> kept_before{0};
    std::vector<CapturedStep> steps;
    for (size_t i = 0; i < program.steps.size(); ++i) {
        if (keep(i)) steps.push_back(std::move(program.steps[i]));
        kept_before.push_back(steps.size());
    }
    for (CapturedProgram::Part& part : program.parts) part.end = kept_before[part.end];
    program.steps = std::move(steps);
}

/// Loop of an elementwise step, and the type of the elements that it reads; no loop where it has none.
struct ElementFormula {
    DType operands = DType::f32;
    Loop loop = nullptr;
};
/// `copies`: also of a step that only copies, which has a faster kernel of its own.
ElementFormula formula_of(const CapturedStep& step, bool copies = false);
/// Appends an elementwise step to those of a loop, with conversions of its operands before it. Its place.
int append_element_step(std::vector<FusedLoop::Step>& steps, const CapturedStep& step,
                        const ElementFormula& formula, std::span<const FusedLoop::Source> sources);

/// Replaces steps whose inputs are all constant by their results, where these are small.
void fold_constants(CapturedProgram& program);
/// Lets steps that compute what an earlier one did use its result.
void share_common_steps(CapturedProgram& program);
/// Lets steps that overwrite all of a buffer write a new one, so that every value has a buffer of its own.
void rename_overwritten(CapturedProgram& program);
/// Removes steps whose results nobody reads.
void remove_dead_steps(CapturedProgram& program);
/// Name of a fused step: those of its operations.
std::string fused_words(const CapturedStep& step);
/// Puts elementwise steps into loops that keep what lies between them in the cache.
void fuse_steps(CapturedProgram& program);
/// Lets elementwise steps write their results over operands that nobody reads later.
void write_over_operands(CapturedProgram& program);
/// Makes loops over a product's result the epilogue of the product, where that saves time.
void join_epilogues(CapturedProgram& program);
/// Gives each buffer that ends with the call its place in one arena.
void place_buffers(CapturedProgram& program);

class FixedMemory;
class ReplayGraphs;

/// Runs a captured program again. One call at a time.
class Replay final : public Counted {
  public:
    /// `graphs`: steps on a CUDA device are put into graphs where they can be.
    Replay(std::shared_ptr<const CapturedProgram> program, bool graphs);
    ~Replay() override;

    /// Whether the tensors outside of the program, and their gradients, are what they were.
    bool fits(const std::vector<T>& arguments) const;
    /// Begin a call. Draws are (seed, number) of random numbers.
    void begin(const std::vector<T>& arguments, const std::vector<std::pair<uint64_t, uint64_t>>& draws);
    /// Tensors that the next part is given besides.
    void add_arguments(const std::vector<T>& arguments);
    /// Leave out the next part, and the arguments that are added for it.
    void skip_part(size_t n_arguments);
    /// Run the next part, and set the gradients that it makes.
    void run_part();
    /// Results `first` to `end` of the call, which earlier parts have computed.
    std::vector<T> results(size_t first, size_t end);
    /// Raises when memory that the next part reads was written since this part ended.
    void check_unchanged() const;
    /// Let the call's memory go.
    void end();
    /// Steps that graphs launch, and memory that is kept for them between calls.
    int64_t graph_steps() const;
    int64_t graph_bytes() const;

  private:
    struct Bound;
    bool shares_memory(const std::vector<T>& arguments) const;
    T tensor_of(const CapturedOperand& operand);
    T result_of(const CapturedOperand& operand) const;
    void take_fixed_memory();
    void take_arena();
    char* place_of(size_t buffer) const;
    void order_streams() const;
    void bring(size_t buffer, char* memory);
    void bring_arguments(size_t first);
    void bring_kept(size_t part);
    Ref<Storage> seen_storage(size_t buffer) const;
    void drop_gradients();
    void set_gradients(const CapturedProgram::Part& part);
    void run_steps(const CapturedProgram::Part& part);
    void note_written();

    std::shared_ptr<const CapturedProgram> program_;
    std::vector<Ref<Storage>> storages_;  ///< of buffers
    std::vector<std::unique_ptr<Bound>> steps_;
    std::vector<int32_t> written_;    ///< buffers of arguments and from outside that steps write
    std::vector<size_t> first_part_;  ///< of buffers: in which a step writes them first
    std::vector<std::vector<int32_t>> part_writes_;  ///< buffers that steps of a part write
    std::vector<T> arguments_;
    std::vector<uint32_t> versions_;     ///< of buffers when the last part ended
    std::vector<Ref<Storage>> kept_;     ///< of this call, by buffer
    std::array<Ref<Storage>, 2> arena_;  ///< its blocks
    Ref<Storage> device_arena_;
    std::unique_ptr<ReplayGraphs> graphs_;
    std::unique_ptr<FixedMemory> fixed_;  ///< in which graphs work
    size_t part_ = 0, step_ = 0;
};

}  // namespace accelera::tensora
