#pragma once

#include "policy/id_list.h"

namespace accelera::policy {

/// Least recently used: what was used lately is used again soon.
///
/// 1. Resident buffers stand in a queue, the oldest in front.
/// 2. A touch moves its buffer to the back.
/// 3. The victim is the first evictable one.
class Lru : public Policy {
  public:
    explicit Lru(const Knowledge& known) : links_(known.buffers), queue_(links_) {}

    void insert(Id id, int64_t, Time, bool) { queue_.push_young(id); }
    void touch(Id id, Time, bool) { queue_.make_youngest(id); }
    void evict(Id id) { queue_.erase(id); }
    void remove(Id id) { queue_.erase(id); }

    void expect(Id id, Time) const { links_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        return queue_.first(evictable);
    }

  private:
    Links links_;
    IdList queue_;
};

}  // namespace accelera::policy
