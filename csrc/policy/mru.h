#pragma once

#include "policy/by_queue.h"

namespace accelera::policy {

/// Most recently used: the best of the simple ones for a loop a little larger than the capacity, where LRU
/// always evicts what comes next (Chou and DeWitt, VLDB 1985).
///
/// 1. Resident buffers stand in a queue, the youngest at the back.
/// 2. A touch moves its buffer to the back.
/// 3. The victim is the last evictable one.
class Mru : public PolicyByQueue {
  public:
    using PolicyByQueue::PolicyByQueue;

    void touch(Id id, Time, bool) { queue_.make_youngest(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return queue_.last(evictable);
    }
};

}  // namespace accelera::policy
