#pragma once

#include <algorithm>

#include "policy/segments.h"

namespace accelera::policy {

/// Adaptive replacement cache (Megiddo and Modha, FAST 2003), in bytes.
///
/// 1. Residents stand in two LRU queues: accessed `once` and accessed more `often`. The evicted of each are
///    remembered in a queue of ghosts, `once_gone` and `often_gone`.
/// 2. A touch moves its buffer to the back of `often`; so does the return of a ghost.
/// 3. A ghost that returns says which queue was too small: the target for the bytes of `once` grows or
///    shrinks by the ratio of the ghost queues' bytes, by one byte at least.
/// 4. The victim is the oldest of `once` where that holds more than its target, else the oldest of `often`.
/// 5. `once` and its ghosts never exceed the capacity, all four queues never twice the capacity: the oldest
///    ghost is forgotten, one for each eviction.
class Arc : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::capacity;

    explicit Arc(const Knowledge& known) : capacity_(known.capacity_bytes), queues_(known.buffers, 4) {}

    void miss(Id id, int64_t nbytes, Time, bool) {
        incoming_bytes_ = nbytes;
        returned_from_ = queues_.where(id);
        if (returned_from_ == once_gone) {
            target_ = std::min(target_ + step(often_gone, once_gone), static_cast<double>(capacity_));
        } else if (returned_from_ == often_gone) {
            target_ = std::max(target_ - step(once_gone, often_gone), 0.0);
        }
        queues_.erase(id);
    }

    void insert(Id id, int64_t nbytes, Time, bool) {
        queues_.push(returned_from_ == nowhere ? once : often, id, nbytes);
        returned_from_ = nowhere;
    }

    void touch(Id id, Time, bool) { queues_.move(often, id); }

    void evict(Id id) {
        const int from = queues_.where(id);
        if (returned_from_ == nowhere && once_is_full()) {
            if (queues_[once_gone].empty() && from == once) return queues_.erase(id);
            if (!queues_[once_gone].empty()) queues_.erase_oldest(once_gone);
        } else if (returned_from_ == nowhere && all_are_full() && !queues_[often_gone].empty()) {
            queues_.erase_oldest(often_gone);
        }
        queues_.move(from == once ? once_gone : often_gone, id);
    }

    void remove(Id id) { queues_.erase(id); }

    void expect(Id id, Time) const { queues_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        const bool from_once = prefers_once();
        const Id found = queues_[from_once ? once : often].first(evictable);
        return found == none ? queues_[from_once ? often : once].first(evictable) : found;
    }

  private:
    enum Queue : int { once, often, once_gone, often_gone };
    static constexpr int nowhere = Segments::nowhere;

    double step(int other, int own) const {
        const auto own_bytes = static_cast<double>(std::max<int64_t>(queues_.bytes(own), 1));
        return std::max(static_cast<double>(queues_.bytes(other)) / own_bytes, 1.0);
    }

    bool once_is_full() const {
        return queues_.bytes(once) + queues_.bytes(once_gone) + incoming_bytes_ > capacity_;
    }
    bool all_are_full() const {
        const int64_t bytes =
            queues_.bytes(once) + queues_.bytes(often) + queues_.bytes(once_gone) + queues_.bytes(often_gone);
        return bytes >= 2 * capacity_;
    }

    bool prefers_once() const {
        if (returned_from_ == nowhere && once_is_full() && queues_[once_gone].empty()) return true;
        const auto bytes = static_cast<double>(queues_.bytes(once));
        return bytes > target_ || (bytes == target_ && bytes > 0 && returned_from_ == often_gone);
    }

    const int64_t capacity_;
    Segments queues_;
    double target_ = 0;
    int64_t incoming_bytes_ = 0;
    int returned_from_ = nowhere;
};

}  // namespace accelera::policy
