#pragma once

#include "policy/segments.h"

namespace accelera::policy {

/// 2Q, the full version (Johnson and Shasha, VLDB 1994): who comes back after leaving the first queue is hot.
///
/// 1. A new buffer stands in `fresh`, a queue of a quarter of the capacity that touches do not change.
/// 2. Evicted from there, it is remembered in `gone`, a queue of ids worth half of the capacity.
/// 3. Who is accessed while it is in `gone` enters `hot`, an LRU queue.
/// 4. The victim is the oldest of `fresh` where that exceeds its share, else the oldest of `hot`.
class TwoQ : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::capacity;

    explicit TwoQ(const Knowledge& known)
        : fresh_share_(known.capacity_bytes / 4),
          gone_share_(known.capacity_bytes / 2),
          queues_(known.buffers, 3) {}

    void miss(Id id, int64_t, Time, bool) {
        is_back_ = queues_.where(id) == gone;
        queues_.erase(id);
    }
    void insert(Id id, int64_t nbytes, Time, bool) {
        queues_.push(is_back_ ? hot : fresh, id, nbytes);
        is_back_ = false;
    }
    void touch(Id id, Time, bool) {
        if (queues_.where(id) == hot) queues_.move(hot, id);
    }
    void evict(Id id) {
        if (queues_.where(id) == hot) return queues_.erase(id);
        queues_.move(gone, id);
        queues_.trim(gone, gone_share_);
    }
    void remove(Id id) { queues_.erase(id); }

    void expect(Id id, Time) const { queues_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        const bool from_fresh = queues_.bytes(fresh) > fresh_share_ || queues_[hot].empty();
        const Id found = queues_[from_fresh ? fresh : hot].first(evictable);
        return found == none ? queues_[from_fresh ? hot : fresh].first(evictable) : found;
    }

  private:
    enum Queue : int { fresh, hot, gone };

    const int64_t fresh_share_;
    const int64_t gone_share_;
    Segments queues_;
    bool is_back_ = false;
};

}  // namespace accelera::policy
