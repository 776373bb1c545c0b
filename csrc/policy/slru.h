#pragma once

#include "policy/segments.h"

namespace accelera::policy {

/// Segmented LRU (Karedla, Love and Wherry, IEEE Computer 1994): a scan cannot displace what was used twice.
///
/// 1. A new buffer enters `probation`, an LRU queue.
/// 2. A touch moves its buffer to the back of `safe`, a queue of four fifths of the capacity; whoever that
///    pushes out of its front goes back to `probation`.
/// 3. The victim is the oldest of `probation`, else the oldest of `safe`.
class Slru : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::capacity;

    explicit Slru(const Knowledge& known)
        : safe_share_(known.capacity_bytes / 5 * 4), queues_(known.buffers, 2) {}

    void insert(Id id, int64_t nbytes, Time, bool) { queues_.push(probation, id, nbytes); }
    void touch(Id id, Time, bool) {
        queues_.move(safe, id);
        while (queues_.bytes(safe) > safe_share_) queues_.move(probation, queues_[safe].oldest());
    }
    void evict(Id id) { queues_.erase(id); }
    void remove(Id id) { queues_.erase(id); }

    void expect(Id id, Time) const { queues_.expect(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        const Id found = queues_[probation].first(evictable);
        return found == none ? queues_[safe].first(evictable) : found;
    }

  private:
    enum Queue : int { probation, safe };

    const int64_t safe_share_;
    Segments queues_;
};

}  // namespace accelera::policy
