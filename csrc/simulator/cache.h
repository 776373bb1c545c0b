#pragma once

#include <string>

#include "policy/any.h"
#include "trace/events.h"

namespace accelera::simulator {

using policy::Id;
using policy::Span;
using policy::Time;
using trace::Events;
using trace::Kind;

struct CacheFigures {
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t miss_bytes = 0;
    int64_t evictions = 0;
    int64_t evicted_bytes = 0;
    int64_t peak_bytes = 0;
};

/// A plain cache: every access is let go at once; what is larger than the capacity passes by.
/// False when no policy is called `name`.
bool run_cache(const std::string& name, const policy::Knowledge& known, const Events& events,
               CacheFigures& figures);

/// The same with a policy behind virtual calls.
CacheFigures run_cache(policy::AnyPolicy& policy, int64_t capacity_bytes, const Events& events);

}  // namespace accelera::simulator
