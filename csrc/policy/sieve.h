#pragma once

#include "policy/id_list.h"

namespace accelera::policy {

/// SIEVE: lazy promotion and quick demotion with one hand (Zhang et al., NSDI 2024).
///
/// 1. Resident buffers stand in a queue in the order of their arrival, each with a mark, unset at first.
/// 2. A touch sets the mark; nobody moves.
/// 3. A hand goes from the oldest to the youngest, and around. It takes the mark of whoever has one, and the
///    victim is the first without. Those that arrive stand behind the hand, which soon finds them again if
///    they are not touched.
class Sieve : public Policy {
  public:
    explicit Sieve(const Knowledge& known) : links_(known.buffers), queue_(links_), marked_(known.buffers) {}

    void insert(Id id, int64_t, Time, bool) {
        marked_[id] = 0;
        queue_.push_young(id);
    }
    void touch(Id id, Time, bool) { marked_[id] = 1; }
    void evict(Id id) { remove(id); }
    void remove(Id id) {
        if (id == hand_) hand_ = queue_.younger_than(id);
        queue_.erase(id);
    }

    void expect(Id id, Time) const { marked_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        for (int turns = 0; turns < 3; ++turns) {
            for (Id id = hand_ == none ? queue_.oldest() : hand_; id != none; id = queue_.younger_than(id)) {
                if (!evictable(id)) continue;
                hand_ = id;
                if (!marked_[id]) return id;
                marked_[id] = 0;
            }
            hand_ = none;
        }
        return none;
    }

  private:
    Links links_;
    IdList queue_;
    ById<uint8_t> marked_;
    Id hand_ = none;
};

}  // namespace accelera::policy
