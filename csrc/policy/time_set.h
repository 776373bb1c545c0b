#pragma once

#include <algorithm>
#include <vector>

#include "policy/contract.h"

namespace accelera::policy {

/// A set of times below a bound: a tree of bits, 64 to a node. A node's bit says whether the child below it
/// is not empty, so the last time is found in one step per level: four for ten million.
class TimeSet {
  public:
    explicit TimeSet(size_t bound) {
        do {
            bound = std::max<size_t>((bound + 63) / 64, 1);
            levels_.emplace_back(bound, 0);
        } while (bound > 1);
    }

    bool contains(Time time) const { return levels_[0][word(time)] >> bit(time) & 1; }

    void insert(Time time) {
        for (auto& level : levels_) {
            uint64_t& node = level[word(time)];
            const bool was_empty = node == 0;
            node |= uint64_t{1} << bit(time);
            if (!was_empty) return;
            time >>= 6;
        }
    }

    void erase(Time time) {
        for (auto& level : levels_) {
            uint64_t& node = level[word(time)];
            node &= ~(uint64_t{1} << bit(time));
            if (node != 0) return;
            time >>= 6;
        }
    }

    /// The last time in the set that is below `bound`, or -1.
    Time last_below(Time bound) const {
        for (size_t level = 0; level < levels_.size() && bound > 0; ++level) {
            const Time inside = bound & 63;
            const uint64_t below = inside ? levels_[level][word(bound)] & ((uint64_t{1} << inside) - 1) : 0;
            if (below) return descend(level, (bound & ~63) | highest(below));
            bound >>= 6;
        }
        return -1;
    }

    /// The last time in the set, or -1.
    Time last() const {
        const size_t top = levels_.size() - 1;
        return levels_[top][0] ? descend(top, highest(levels_[top][0])) : -1;
    }

  private:
    static size_t word(Time time) { return static_cast<size_t>(time) >> 6; }
    static int bit(Time time) { return time & 63; }
    static Time highest(uint64_t node) { return 63 - __builtin_clzll(node); }

    Time descend(size_t level, Time place) const {
        while (level-- > 0) place = place << 6 | highest(levels_[level][static_cast<size_t>(place)]);
        return place;
    }

    std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace accelera::policy
