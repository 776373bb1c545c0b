#pragma once

#include "policy/id_list.h"

namespace accelera::policy {

/// First in, first out: the cheapest, and the base line of all others.
///
/// 1. Resident buffers stand in a queue in the order of their arrival.
/// 2. A touch changes nothing.
/// 3. The victim is the first evictable one.
class Fifo : public Policy {
  public:
    explicit Fifo(const Knowledge& known) : links_(known.buffers), queue_(links_) {}

    void insert(Id id, int64_t, Time, bool) { queue_.push_young(id); }
    void touch(Id, Time, bool) {}
    void evict(Id id) { queue_.erase(id); }
    void remove(Id id) { queue_.erase(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return queue_.first(evictable);
    }

  private:
    Links links_;
    IdList queue_;
};

}  // namespace accelera::policy
