#pragma once

#include <array>
#include <cstdint>

#include "tensora/core/tensor.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

/// Walk over tensors of one shape (or broadcast to it) line by line: neighbouring axes that lie as one are
/// one.
class Lines {
  public:
    static constexpr int most = 6;

    /// The first operand is the output, whose shape is that of the walk.
    explicit Lines(const Dims& shape) : shape_(shape) {}
    /// Strides in bytes, of the walk's shape.
    void add(char* data, const Dims& strides);
    void add(const Tensor& tensor);

    /// Call the loop for each line, on several threads.
    void run(Loop loop);

  private:
    void join_axes();
    /// Lines `begin` to `end` of the walk.
    void run_lines(Loop loop, int64_t begin, int64_t end) const;
    void run_one(Loop loop, int64_t begin, int64_t end) const;

    Dims shape_;
    int n_ = 0;
    std::array<char*, most> data_;
    std::array<Dims, most> strides_;
};

/// Copy elements between tensors of one shape, converting their type.
void copy_elements(const Tensor& from, const Tensor& to);
/// Of a contiguous tensor.
void fill_zeros(const Tensor& out);

}  // namespace accelera::tensora
