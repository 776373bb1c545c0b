#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "tensora/core/capture_events.h"
#include "tensora/jit/program.h"

namespace accelera::tensora {

/// Record of what the operations of this thread do, from which a program is made that does it again.
class Capture {
  public:
    explicit Capture(const std::vector<T>& arguments);
    ~Capture();
    Capture(const Capture&) = delete;

    /// The capture of this thread, or null.
    static Capture* here() { return thread_state.capture; }

    // --- told by operations

    /// An operation has filled its outputs.
    void add(const Call& call, int64_t workspace_bytes);
    /// An operation is about to write its result into `target`.
    void add_write(const Op& op, std::span<const T> inputs, const Params& params, const Tensor& target);
    /// Memory allocated now holds what no step computes.
    void born(Storage& storage);
    /// The program sets or drops the gradient of a leaf.
    void gradient_set(const T& leaf);
    /// Raises if each call computes the elements anew; notes the elements of a tensor from outside.
    void refuse_read(const Tensor& tensor, const char* what);
    /// The function reads the gradient of a leaf.
    void gradient_read(const T& leaf);
    /// The next random numbers.
    void draw(uint64_t seed, uint64_t number) { draws_.emplace_back(seed, number); }

    /// Tensors that a later part of a call is given.
    void add_arguments(const std::vector<T>& arguments);
    /// Python does something that is no part of the program: here each call stops for it.
    void end_part();
    /// Of the parts that follow, a call runs at most one.
    void begin_alternatives() { program_->first_alternative = program_->parts.size(); }
    std::shared_ptr<CapturedProgram> finish(const std::vector<T>& results);

  private:
    int32_t add_buffer(CapturedBuffer buffer, Device device);
    int32_t buffer_of(const T& tensor);
    CapturedOperand operand_of(const T& tensor);
    int32_t computed(Storage& storage);
    /// Adds a step that copies the elements to new memory.
    CapturedOperand copied(const CapturedOperand& operand);
    void note_written(int32_t buffer);
    void note_leaf(const T& tensor);
    void note_read(const Tensor& tensor);
    CapturedGradient gradient_of(const T& leaf);
    int32_t draw_of(const Op& op, const Params& params) const;

    uint32_t number_;
    std::shared_ptr<CapturedProgram> program_;
    std::vector<T> arguments_, leaves_;
    /// Gradient of a leaf when the part began, and whether the program has set or dropped it.
    struct LeafState {
        bool ever_set = false, set_in_part = false;
        T gradient;
        bool had_one = false;  ///< when the function met it
    };
    std::unordered_map<const Tensor*, LeafState> leaf_states_;
    std::vector<std::pair<uint64_t, uint64_t>> draws_;
    std::vector<char> written_;  ///< buffers that steps have written in place
};

}  // namespace accelera::tensora
