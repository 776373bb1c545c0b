#pragma once

#include "policy/segments.h"

namespace accelera::policy {

/// W-TinyLFU (Einziger, Friedman and Manes, ACM TOS 2017): who comes in must be used more often than who
/// would go out.
///
/// 1. Every access counts, of absent buffers too. When there were ten accesses per resident, all counts are
///    halved. (Counts are exact: ids are dense, so no sketch is needed.)
/// 2. A new buffer stands in `window`, an LRU queue of a hundredth of the capacity. Whoever that pushes out
///    of its front goes to `probation`, while there is room.
/// 3. `probation` and `safe` are a segmented LRU: a touch moves its buffer to the back of `safe`, which holds
///    four fifths of the rest; whoever that pushes out goes back to `probation`.
/// 4. Where `window` exceeds its share, its oldest and the oldest of `probation` are compared: the victim is
///    the one with the lower count, at a tie the newcomer; a newcomer that wins moves to `probation`.
///    Elsewhere the victim is the oldest of `probation`, then of `safe`, then of `window`.
class WTinyLfu : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::capacity;

    explicit WTinyLfu(const Knowledge& known)
        : window_share_(known.capacity_bytes / 100),
          main_share_(known.capacity_bytes - window_share_),
          safe_share_(main_share_ / 5 * 4),
          queues_(known.buffers, 3),
          counts_(known.buffers) {}

    void miss(Id id, int64_t, Time, bool) { count(id); }
    void insert(Id id, int64_t nbytes, Time, bool) {
        queues_.push(window, id, nbytes);
        ++residents_;
        while (queues_.bytes(window) > window_share_ && fits_main(queues_[window].oldest())) {
            queues_.move(probation, queues_[window].oldest());
        }
    }
    void touch(Id id, Time, bool) {
        count(id);
        if (queues_.where(id) == window) return queues_.move(window, id);
        queues_.move(safe, id);
        while (queues_.bytes(safe) > safe_share_) queues_.move(probation, queues_[safe].oldest());
    }
    void evict(Id id) { remove(id); }
    void remove(Id id) {
        queues_.erase(id);
        --residents_;
    }

    void expect(Id id, Time) const {
        queues_.expect(id);
        counts_.expect(id);
    }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        const bool overflows = queues_.bytes(window) > window_share_;
        const Id newcomer = overflows ? queues_[window].first(evictable) : none;
        if (newcomer != none) {
            const Id settled = queues_[probation].first(evictable);
            if (settled == none || frequency(newcomer) <= frequency(settled)) return newcomer;
            queues_.move(probation, newcomer);
            return settled;
        }
        for (const int queue : {probation, safe, window}) {
            const Id found = queues_[queue].first(evictable);
            if (found != none) return found;
        }
        return none;
    }

  private:
    enum Queue : int { window, probation, safe };
    static constexpr int accesses_per_resident = 10;

    struct Count {
        uint32_t accesses = 0;
        /// The halvings that are already in `accesses`.
        uint32_t halvings = 0;
    };

    bool fits_main(Id id) const {
        return queues_.bytes(probation) + queues_.bytes(safe) + queues_.size(id) <= main_share_;
    }

    uint32_t frequency(Id id) {
        Count& count = counts_[id];
        const uint32_t missed = halvings_ - count.halvings;
        count = {missed < 32 ? count.accesses >> missed : 0, halvings_};
        return count.accesses;
    }

    void count(Id id) {
        frequency(id);
        ++counts_[id].accesses;
        if (++accesses_ < accesses_per_resident * (residents_ + 1)) return;
        ++halvings_;
        accesses_ /= 2;
    }

    const int64_t window_share_;
    const int64_t main_share_;
    const int64_t safe_share_;
    Segments queues_;
    ById<Count> counts_;
    int64_t residents_ = 0;
    int64_t accesses_ = 0;
    uint32_t halvings_ = 0;
};

}  // namespace accelera::policy
