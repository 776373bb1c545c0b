#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "tensora/core/op.h"

namespace accelera::tensora {

namespace cuda {
struct FusedProgram;
}

/// Elementwise operations that run together: one after the other on a block of elements, then on the next
/// block, so that what lies between them stays in the cache.
class FusedLoop {
  public:
    static constexpr int most_operands = 3;

    /// One operand of a step: the result of an earlier one, or a leaf.
    struct Source {
        int step = -1;
        int leaf = -1;
    };
    struct Step {
        const char* formula;  ///< "where", "cast" or the name of an operation
        DType operands;       ///< type of the elements that it reads
        Loop loop;
        DType out;
        int n;  ///< operands
        std::array<Source, most_operands> sources{};
        int stored = -1;  ///< which of the tensors that are written; -1: its elements are only read by steps
    };

    FusedLoop(const Dims& shape, std::vector<Step> steps) : shape_(shape), steps_(std::move(steps)) {}
    const Dims& shape() const { return shape_; }
    const std::vector<Step>& steps() const { return steps_; }

    /// Leaves have any layout that broadcasts to the shape; what is stored is contiguous.
    void run(std::span<const T> leaves, std::span<const T> stored) const;

    /// The same on the CPU in parts: runs elements [begin, end) whenever it is called, on any thread. The
    /// tensors outlive it.
    std::function<void(int64_t begin, int64_t end)> ranges(std::span<const T> leaves,
                                                           std::span<const T> stored) const;

    /// Whether one of the tensors that are written may be a dense leaf's memory: no step reads the leaf after
    /// the one that writes.
    bool may_write_over(int leaf, int stored) const;

    /// The same as one kernel of a CUDA device.
    cuda::FusedProgram device_program(std::span<const T> leaves, std::span<const T> stored) const;

  private:
    class Blocks;

    Dims shape_;
    std::vector<Step> steps_;
};

}  // namespace accelera::tensora
