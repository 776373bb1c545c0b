#pragma once

#include "policy/by_rank.h"

namespace accelera::policy {

/// Follow somebody else's judgement: a score per access, by a formula, a replay or a model.
///
/// 1. An access gives its buffer the score of that access, which lasts till its next access.
/// 2. The victim is the evictable buffer of the highest score; of equal ones the longest untouched.
///
/// A score that is the predicted time of the next use makes this Belady's policy on a guess.
class Scored : public PolicyByRank {
  public:
    static constexpr unsigned needs = Knowledge::scores;

    explicit Scored(const Knowledge& known) : PolicyByRank(known), score_(known.score) {}

    void insert(Id id, int64_t, Time time, bool) { resident_.push(id, score_.get(time, 0.0), time); }
    void touch(Id id, Time time, bool) { resident_.update(id, score_.get(time, 0.0), time); }

  private:
    Span<double> score_;
};

}  // namespace accelera::policy
