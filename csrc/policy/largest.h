#pragma once

#include "policy/id_heap.h"

namespace accelera::policy {

/// Largest first: fewest evictions, and most small buffers kept.
///
/// The victim is the largest evictable buffer; of equal ones the longest untouched.
class Largest : public Policy {
  public:
    explicit Largest(const Knowledge& known) : places_(known.buffers), resident_(places_) {}

    void insert(Id id, int64_t nbytes, Time time, bool) {
        resident_.push(id, static_cast<double>(nbytes), time);
    }
    void touch(Id id, Time time, bool) { resident_.update(id, resident_.key_of(id), time); }
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
