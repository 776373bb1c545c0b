#pragma once

#include "policy/id_heap.h"

namespace accelera::policy {

/// Least frequently used.
///
/// 1. Each resident buffer counts its accesses; an eviction forgets the count.
/// 2. The victim is the evictable one with the lowest count; of equal ones the longest untouched.
class Lfu : public Policy {
  public:
    explicit Lfu(const Knowledge& known) : places_(known.buffers), resident_(places_) {}

    void insert(Id id, int64_t, Time time, bool) { resident_.push(id, -1.0, time); }
    void touch(Id id, Time time, bool) { resident_.update(id, resident_.key_of(id) - 1.0, time); }
    void evict(Id id) { resident_.erase(id); }
    void remove(Id id) { resident_.erase(id); }

    void expect(Id id, Time) const { places_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return resident_.first(evictable);
    }

  private:
    Places places_;
    IdHeap resident_;
};

}  // namespace accelera::policy
