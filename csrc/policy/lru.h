#pragma once

#include "policy/by_queue.h"

namespace accelera::policy {

/// Least recently used: what was used lately is used again soon.
///
/// 1. Resident buffers stand in a queue, the oldest in front.
/// 2. A touch moves its buffer to the back.
/// 3. The victim is the first evictable one.
class Lru : public PolicyByQueue {
  public:
    using PolicyByQueue::PolicyByQueue;

    void touch(Id id, Time, bool) { queue_.make_youngest(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return queue_.first(evictable);
    }
};

}  // namespace accelera::policy
