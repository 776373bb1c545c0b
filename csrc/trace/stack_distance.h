#pragma once

#include "trace/events.h"

namespace accelera::trace {

/// Where the figures go, one per access: reads and writes, not the other events.
struct StackDistances {
    /// Distinct other ids used since the last use of this one; -1 for a first use, also after a free.
    int32_t* ids;
    /// Their bytes; -1 likewise.
    int64_t* bytes;
    /// The least capacity of an LRU cache that has it, -1 when none has.
    int64_t* needed_bytes;
};

/// Fill `found` for every access among `events`, in one pass.
void measure_stack_distances(const Events& events, const StackDistances& found);

}  // namespace accelera::trace
