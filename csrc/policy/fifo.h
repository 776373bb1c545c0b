#pragma once

#include "policy/by_queue.h"

namespace accelera::policy {

/// First in, first out: the cheapest, and the base line of all others.
///
/// 1. Resident buffers stand in a queue in the order of their arrival.
/// 2. A touch changes nothing.
/// 3. The victim is the first evictable one.
class Fifo : public PolicyByQueue {
  public:
    using PolicyByQueue::PolicyByQueue;

    void touch(Id, Time, bool) {}
    void expect(Id, Time) const {}

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return queue_.first(evictable);
    }
};

}  // namespace accelera::policy
