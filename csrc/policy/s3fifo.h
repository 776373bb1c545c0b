#pragma once

#include <algorithm>

#include "policy/segments.h"

namespace accelera::policy {

/// S3-FIFO: three queues that nobody moves about in (Yang et al., SOSP 2023).
///
/// 1. A new buffer stands in `small`, a queue of a tenth of the capacity; one that is remembered in `gone`
///    stands in `large`, and so does everyone whom `small` has no share for before the first eviction.
/// 2. A touch counts, up to 3.
/// 3. Where `small` exceeds its share, its oldest goes on to `large` if it was touched more than once, with
///    its count forgotten, or else is the victim, which `gone` remembers: ids worth the share of `large`.
/// 4. Elsewhere the oldest of `large` goes to its back for one count, or is the victim when it has none.
class S3Fifo : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::capacity;

    explicit S3Fifo(const Knowledge& known)
        : small_share_(known.capacity_bytes / 10),
          large_share_(known.capacity_bytes - known.capacity_bytes / 10),
          queues_(known.buffers, 3),
          touches_(known.buffers) {}

    void miss(Id id, int64_t, Time, bool) {
        is_back_ = queues_.where(id) == gone;
        queues_.erase(id);
    }
    void insert(Id id, int64_t nbytes, Time, bool) {
        touches_[id] = 0;
        const bool fills_large = !has_evicted_ && queues_.bytes(small) >= small_share_;
        queues_.push(is_back_ || fills_large ? large : small, id, nbytes);
        is_back_ = false;
    }
    void touch(Id id, Time, bool) { touches_[id] = std::min<uint8_t>(touches_[id] + 1, most_touches); }
    void evict(Id id) {
        has_evicted_ = true;
        if (queues_.where(id) == large) return queues_.erase(id);
        queues_.move(gone, id);
        queues_.trim(gone, large_share_);
    }
    void remove(Id id) { queues_.erase(id); }

    void expect(Id id, Time) const {
        queues_.expect(id);
        touches_.expect(id);
    }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        Id found = none;
        if (queues_.bytes(small) > small_share_ || queues_[large].empty()) found = from_small(evictable);
        if (found == none) found = from_large(evictable);
        return found == none ? queues_[small].first(evictable) : found;
    }

  private:
    enum Queue : int { small, large, gone };
    static constexpr uint8_t most_touches = 3;

    template <class Evictable>
    Id from_small(Evictable& evictable) {
        for (Id id = queues_[small].oldest(); id != none;) {
            const Id next = queues_[small].younger_than(id);
            if (evictable(id)) {
                if (touches_[id] < 2) return id;
                touches_[id] = 0;
                queues_.move(large, id);
            }
            id = next;
        }
        return none;
    }

    template <class Evictable>
    Id from_large(Evictable& evictable) {
        for (Id id = queues_[large].oldest(); id != none;) {
            const Id next = queues_[large].younger_than(id);
            if (evictable(id)) {
                if (touches_[id] == 0) return id;
                --touches_[id];
                queues_.move(large, id);
                id = next == none ? id : next;
            } else {
                id = next;
            }
        }
        return none;
    }

    const int64_t small_share_;
    const int64_t large_share_;
    Segments queues_;
    ById<uint8_t> touches_;
    bool is_back_ = false;
    bool has_evicted_ = false;
};

}  // namespace accelera::policy
