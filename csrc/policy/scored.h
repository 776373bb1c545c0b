#pragma once

#include "policy/id_heap.h"

namespace accelera::policy {

/// Follow somebody else's judgement: a score per access, by a formula, a replay or a model.
///
/// 1. An access gives its buffer the score of that access, which lasts till its next access.
/// 2. The victim is the evictable buffer of the highest score; of equal ones the longest untouched.
///
/// A score that is the predicted time of the next use makes this Belady's policy on a guess.
class Scored : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::scores;

    explicit Scored(const Knowledge& known)
        : score_(known.score), places_(known.buffers), resident_(places_) {}

    void insert(Id id, int64_t, Time time, bool) { resident_.push(id, score_.get(time, 0.0), time); }
    void touch(Id id, Time time, bool) { resident_.update(id, score_.get(time, 0.0), time); }
    void evict(Id id) { resident_.erase(id); }
    void remove(Id id) { resident_.erase(id); }

    void expect(Id id, Time) const { places_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return resident_.first(evictable);
    }

  private:
    Span<double> score_;
    Places places_;
    IdHeap resident_;
};

}  // namespace accelera::policy
