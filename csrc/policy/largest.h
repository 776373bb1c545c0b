#pragma once

#include "policy/by_rank.h"

namespace accelera::policy {

/// Largest first: fewest evictions, and most small buffers kept.
///
/// The victim is the largest evictable buffer; of equal ones the longest untouched.
class Largest : public PolicyByRank {
  public:
    using PolicyByRank::PolicyByRank;

    void insert(Id id, int64_t nbytes, Time time, bool) {
        resident_.push(id, static_cast<double>(nbytes), time);
    }
    void touch(Id id, Time time, bool) { resident_.update(id, resident_.key_of(id), time); }
};

}  // namespace accelera::policy
