#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensora/core/tensor.h"

namespace accelera::tensora {

/// Elements of a storage, from `begin` to before `end`.
struct ElementRange {
    int64_t begin, end;
    void include(const ElementRange& other);
};
ElementRange elements_of(const Layout& layout);

/// Key of the arguments of a captured function: shapes, types, layouts, and which elements they share. Absent
/// if a captured program cannot express it: a hook on a leaf, or memory shared across storages or types.
std::optional<std::string> signature_of(const std::vector<T>& arguments);

/// Whether an element of the one tensor may be an element of the other.
bool may_overlap(const Tensor& a, const Tensor& b);
/// Whether any of these tensors, or their gradients, may have an element in common with an argument.
bool any_overlap(const std::vector<T>& arguments, const std::vector<T>& tensors);

/// The elements in order, on the CPU.
std::vector<char> bytes_of(const T& tensor);

}  // namespace accelera::tensora
