#pragma once

#include <limits>
#include <vector>

#include "policy/id_heap.h"

namespace accelera::policy {

/// Belady's policy weighed by size: evict the buffer that blocks the most bytes for the longest, size times
/// time to the next use. The exact optimum for many sizes is NP-hard (Berger et al., SIGMETRICS 2018).
///
/// 1. Residents stand in heaps by the class of their size, the furthest next use on top: eight classes for
///    each power of two, so that sizes of a class differ by an eighth at most.
/// 2. The victim is, among the first evictable ones of all classes, the one with the largest product; whoever
///    is never used again goes before all others, the largest first.
///
/// Within a class the furthest goes first, so the choice is exact where a class holds one size.
class BeladySize : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::uses;

    explicit BeladySize(const Knowledge& known)
        : next_use_(known.next_use), places_(known.buffers), size_(known.buffers) {}

    void miss(Id, int64_t, Time time, bool) { now_ = time; }
    void insert(Id id, int64_t nbytes, Time time, bool) {
        size_[id] = nbytes;
        heap_of(nbytes).push(id, next_use_.get(time, never), time);
    }
    void touch(Id id, Time time, bool) { heap_of(size_[id]).update(id, next_use_.get(time, never), time); }
    void evict(Id id) { remove(id); }
    void remove(Id id) { heap_of(size_[id]).erase(id); }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        Id found = none;
        double most = -std::numeric_limits<double>::infinity();
        for (IdHeap& heap : heaps_) {
            const Id id = heap.first(evictable);
            if (id == none) continue;
            const double blocked = blocks(size_[id], heap.key_of(id));
            if (blocked > most) {
                most = blocked;
                found = id;
            }
        }
        return found;
    }

  private:
    /// Negative where the use has been: in a lower tier, as that was a hit above.
    double blocks(int64_t nbytes, double due) const {
        constexpr double endless = 1e30;
        const auto bytes = static_cast<double>(nbytes);
        return due >= never ? (bytes + 1) * endless : bytes * (due - now_);
    }

    static size_t class_of(int64_t nbytes) {
        if (nbytes < 8) return static_cast<size_t>(nbytes);
        const int shift = 60 - __builtin_clzll(static_cast<uint64_t>(nbytes));
        return static_cast<size_t>(int64_t(shift) * 8 + (nbytes >> shift));
    }

    IdHeap& heap_of(int64_t nbytes) {
        while (heaps_.size() <= class_of(nbytes)) heaps_.emplace_back(places_);
        return heaps_[class_of(nbytes)];
    }

    Span<Time> next_use_;
    Places places_;
    ById<int64_t> size_;
    std::vector<IdHeap> heaps_;
    Time now_ = 0;
};

}  // namespace accelera::policy
