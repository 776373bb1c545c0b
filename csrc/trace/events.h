#pragma once

#include "policy/contract.h"

namespace accelera::trace {

using policy::Id;
using policy::Span;

/// What may happen in an event; the values of `accelera.trace.Kind`.
enum class Kind : uint8_t { read = 0, write = 1, release = 2, save = 3, evict = 4, free = 5 };

/// Events in order, and the bytes of each buffer. Empty `kinds`: all are reads.
struct Events {
    Span<Id> buffer;
    Span<uint8_t> kinds;
    Span<int64_t> size_bytes;
};

}  // namespace accelera::trace
