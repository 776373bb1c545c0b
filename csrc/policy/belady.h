#pragma once

#include "policy/id_list.h"
#include "policy/time_set.h"

namespace accelera::policy {

/// Belady's MIN (IBM Systems Journal 1966): evict the buffer whose next use lies furthest in the future.
/// Fewest misses for buffers of one size. It needs the future, which a planned run has.
///
/// 1. No two buffers are used at one time, so each resident owns the time of its next use: a bit in a set of
///    times. Those with no next use, as far as is known, stand in a queue.
/// 2. The victim is the first evictable one of the queue, else the owner of the last time in the set.
class Belady : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::uses;

    explicit Belady(const Knowledge& known)
        : next_use_(known.next_use),
          due_(next_use_.size),
          owner_(next_use_.size, none),
          due_of_(known.buffers, never),
          links_(known.buffers),
          idle_(links_) {}

    void insert(Id id, int64_t, Time time, bool) { own(id, next_use_.get(time, never)); }
    void touch(Id id, Time time, bool) {
        disown(id);
        own(id, next_use_.get(time, never));
    }
    void evict(Id id) { disown(id); }
    void remove(Id id) { disown(id); }

    void expect(Id id, Time time) const {
        due_of_.expect(id);
        const auto due = static_cast<size_t>(next_use_.get(time, never));
        if (due < owner_.size()) __builtin_prefetch(&owner_[due], 1);
    }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        const Id idle = idle_.first(evictable);
        if (idle != none) return idle;
        Time time = due_.last();
        while (time >= 0 && !evictable(owner_[static_cast<size_t>(time)])) time = due_.last_below(time);
        return time < 0 ? none : owner_[static_cast<size_t>(time)];
    }

  private:
    /// A time past the end, or owned by another because the run is not the one foreseen, is no time.
    void own(Id id, Time time) {
        const bool usable = static_cast<size_t>(time) < next_use_.size && !due_.contains(time);
        due_of_[id] = usable ? time : never;
        if (!usable) return idle_.push_young(id);
        owner_[static_cast<size_t>(time)] = id;
        due_.insert(time);
    }

    void disown(Id id) {
        const Time time = due_of_[id];
        if (time == never) return idle_.erase(id);
        due_.erase(time);
    }

    Span<Time> next_use_;
    TimeSet due_;
    std::vector<Id> owner_;
    ById<Time> due_of_;
    Links links_;
    IdList idle_;
};

}  // namespace accelera::policy
