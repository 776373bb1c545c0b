#pragma once

#include "policy/by_rank.h"

namespace accelera::policy {

/// Least frequently used.
///
/// 1. Each resident buffer counts its accesses; an eviction forgets the count.
/// 2. The victim is the evictable one with the lowest count; of equal ones the longest untouched.
class Lfu : public PolicyByRank {
  public:
    using PolicyByRank::PolicyByRank;

    void insert(Id id, int64_t, Time time, bool) { resident_.push(id, -1.0, time); }
    void touch(Id id, Time time, bool) { resident_.update(id, resident_.key_of(id) - 1.0, time); }
};

}  // namespace accelera::policy
