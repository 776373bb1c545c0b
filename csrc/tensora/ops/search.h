#pragma once

#include <optional>

#include "tensora/core/op.h"

namespace accelera::tensora {

/// Indices that sort `x` along an axis, equal elements in their order and NaN last; the first `kept` of them.
T argsort(const T& x, int axis, bool descending, std::optional<int64_t> kept);
/// Index of the first largest or smallest element along an axis; of the first NaN where there is one.
T argmax(const T& x, int axis, bool keep);
T argmin(const T& x, int axis, bool keep);
/// Where each value would have to stand in a sorted vector; behind equal elements if `right`.
T searchsorted(const T& sorted, const T& values, bool right);

struct Unique {
    T values;   ///< sorted; each NaN is one of its own
    T indices;  ///< of the first element of each value, in the flattened tensor
    T inverse;  ///< for each element the place of its value
    T counts;
};
Unique unique(const T& x);

}  // namespace accelera::tensora
