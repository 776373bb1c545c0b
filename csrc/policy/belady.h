#pragma once

#include <queue>
#include <utility>
#include <vector>

#include "policy/contract.h"

namespace accelera::policy {

/// Belady's MIN: evict the buffer whose next use lies furthest in the future. Fewest misses for buffers of
/// one size (Belady 1966). It needs the future, which a planned run has.
///
/// 1. On insert or touch at time t, push (next use after t) on a heap, furthest on top.
/// 2. The victim is the top entry that is current and evictable.
class Belady : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::uses;

    explicit Belady(const Knowledge& known) : next_use_(known.next_use), due_(known.buffers, absent) {}

    void insert(Id id, int64_t, Time time, bool) { note(id, time); }
    void touch(Id id, Time time, bool) { note(id, time); }
    void evict(Id id) { due_[id] = absent; }
    void remove(Id id) { due_[id] = absent; }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        std::vector<Entry> held;
        Id found = none;
        while (found == none && !heap_.empty()) {
            const Entry entry = heap_.top();
            if (due_[entry.second] != entry.first) {
                heap_.pop();
            } else if (evictable(entry.second)) {
                found = entry.second;
            } else {
                held.push_back(entry);
                heap_.pop();
            }
        }
        for (const Entry& entry : held) heap_.push(entry);
        return found;
    }

  private:
    using Entry = std::pair<Time, Id>;
    static constexpr Time absent = -1;

    void note(Id id, Time time) {
        due_[id] = next_use_.get(time, never);
        heap_.push({due_[id], id});
    }

    Span<Time> next_use_;
    ById<Time> due_;
    std::priority_queue<Entry> heap_;
};

}  // namespace accelera::policy
