#pragma once

#include "policy/id_list.h"

namespace accelera::policy {

/// Most recently used: the best of the simple ones for a loop a little larger than the capacity, where LRU
/// always evicts what comes next (Chou and DeWitt, VLDB 1985).
///
/// 1. Resident buffers stand in a queue, the youngest at the back.
/// 2. A touch moves its buffer to the back.
/// 3. The victim is the last evictable one.
class Mru : public Policy {
  public:
    explicit Mru(const Knowledge& known) : links_(known.buffers), queue_(links_) {}

    void insert(Id id, int64_t, Time, bool) { queue_.push_young(id); }
    void touch(Id id, Time, bool) { queue_.make_youngest(id); }
    void evict(Id id) { queue_.erase(id); }
    void remove(Id id) { queue_.erase(id); }

    void expect(Id id, Time) const { links_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return queue_.last(evictable);
    }

  private:
    Links links_;
    IdList queue_;
};

}  // namespace accelera::policy
