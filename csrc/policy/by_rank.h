#pragma once

#include "policy/id_heap.h"

namespace accelera::policy {

/// What policies share that rank their residents: the evictable one of the highest key leaves, of equal ones
/// the longest untouched.
class PolicyByRank : public Policy {
  public:
    explicit PolicyByRank(const Knowledge& known) : places_(known.buffers), resident_(places_) {}
    PolicyByRank(const PolicyByRank&) = delete;
    PolicyByRank& operator=(const PolicyByRank&) = delete;

    void evict(Id id) { resident_.erase(id); }
    void remove(Id id) { resident_.erase(id); }
    void expect(Id id, Time) const { places_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return resident_.first(evictable);
    }

  private:
    Places places_;

  protected:
    IdHeap resident_;
};

}  // namespace accelera::policy
