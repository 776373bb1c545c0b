#pragma once

#include "policy/id_list.h"

namespace accelera::policy {

/// CLOCK, also called second chance: LRU's hits at FIFO's cost (Corbató 1968).
///
/// 1. Resident buffers stand in a queue in the order of their arrival, each with a mark, unset at first.
/// 2. A touch sets the mark.
/// 3. The victim is the first evictable one that is unmarked. Whoever is passed over with a mark loses it and
///    goes to the back.
class Clock : public Policy {
  public:
    explicit Clock(const Knowledge& known) : links_(known.buffers), queue_(links_), marked_(known.buffers) {}

    void insert(Id id, int64_t, Time, bool) {
        marked_[id] = 0;
        queue_.push_young(id);
    }
    void touch(Id id, Time, bool) { marked_[id] = 1; }
    void evict(Id id) { queue_.erase(id); }
    void remove(Id id) { queue_.erase(id); }

    void expect(Id id, Time) const { marked_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        for (Id id = queue_.oldest(); id != none;) {
            const Id next = queue_.younger_than(id);
            if (evictable(id)) {
                if (!marked_[id]) return id;
                marked_[id] = 0;
                queue_.make_youngest(id);
                id = next == none ? id : next;
            } else {
                id = next;
            }
        }
        return none;
    }

  private:
    Links links_;
    IdList queue_;
    ById<uint8_t> marked_;
};

}  // namespace accelera::policy
