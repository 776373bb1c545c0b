#pragma once

#include <optional>
#include <vector>

#include "tensora/core/op.h"

namespace accelera::tensora {

/// One part of an index, after Python's notation was read.
struct Subscript {
    enum class Kind : uint8_t { number, range, new_axis, tensor } kind;
    int64_t start = 0;  ///< the number, or the first element of a range
    int64_t step = 1;
    int64_t size = 0;
    T tensor;  ///< of int64, in range; a bool mask was replaced by the places of its true elements
};

/// x[subscripts], one for each axis of `x` besides new ones: a view where no tensor is among them.
T subscripted(const T& x, const std::vector<Subscript>& subscripts);
/// x[subscripts] = value
void assign(const T& x, const std::vector<Subscript>& subscripts, const T& value);

/// Elements of `target` become op(inputs) or `value`; raises where gradients would be lost, or types do not
/// fit.
void apply_in_place(const Op& op, std::span<const T> inputs, const T& target);
void write_in_place(const T& target, const T& value, const char* op);

/// Indices of the elements that are not zero: one int64 tensor for each axis.
std::vector<T> nonzero(const T& x);
/// The index counted from the front, for an axis of this extent; raises when one is out of range.
T checked_index(const T& index, int64_t extent, const char* op);

}  // namespace accelera::tensora
