#pragma once

#include <vector>

#include "policy/contract.h"

namespace accelera::trace {

using policy::Id;
using policy::Span;

/// Hits by capacity: entry i of each holds for capacities from `capacity_bytes[i]` on; ascending.
struct MissCurve {
    std::vector<int64_t> capacity_bytes;
    std::vector<int64_t> hits;
    std::vector<int64_t> hit_bytes;
};

/// Sum up what each access needs to hit (-1: it never does); `buffer` and `needed_bytes` have one entry per
/// access, `size_bytes` one per buffer.
MissCurve sum_up_needs(Span<Id> buffer, Span<int64_t> needed_bytes, Span<int64_t> size_bytes);

}  // namespace accelera::trace
