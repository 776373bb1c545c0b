#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/contract.h"

namespace accelera::trace {

using policy::Id;

/// Ids in the order of their last use, some of which leave; answers the most bytes that an id and those used
/// after it have had together since its last use: the least capacity at which LRU has kept it.
///
/// A segment tree over slots of use; each node remembers what was added to all its slots, and the greatest
/// that the running sum of these additions has been. A slot's own running sum starts at its id's bytes.
class RecencyPeaks {
  public:
    explicit RecencyPeaks(size_t ids) : slot_of_(ids, unused) {
        while (slots_ < 2 * ids) slots_ *= 2;
        nodes_.resize(2 * slots_);
        owner_.resize(slots_);
    }

    bool contains(Id id) const { return slot_of_[static_cast<size_t>(id)] != unused; }

    /// Let `id` be used; return its peak, or -1 when it is not contained.
    int64_t use(Id id, int64_t nbytes) {
        const uint32_t slot = slot_of_[static_cast<size_t>(id)];
        const int64_t peak = slot == unused ? -1 : settled(slot).peak;
        add(slot == unused ? 0 : slot + 1, next_, nbytes);
        if (next_ == slots_) close_ranks(id);
        place(id, {nbytes, nbytes});
        return peak;
    }

    /// Let `id`, which is contained, leave: those used before it are less loaded from now on.
    void leave(Id id, int64_t nbytes) {
        add(0, slot_of_[static_cast<size_t>(id)], -nbytes);
        slot_of_[static_cast<size_t>(id)] = unused;
    }

  private:
    static constexpr uint32_t unused = UINT32_MAX;

    /// Of a node: additions its children have not heard of. Of a slot: bytes now, and the most so far.
    struct Load {
        int64_t sum = 0;
        int64_t peak = 0;

        void then(const Load& more) {
            peak = std::max(peak, sum + more.peak);
            sum += more.sum;
        }
    };

    void place(Id id, const Load& load) {
        owner_[next_] = id;
        slot_of_[static_cast<size_t>(id)] = static_cast<uint32_t>(next_);
        settled(next_) = load;
        ++next_;
    }

    void push_down(size_t node) {
        nodes_[2 * node].then(nodes_[node]);
        nodes_[2 * node + 1].then(nodes_[node]);
        nodes_[node] = {};
    }

    /// The slot's load, after all that was added above it.
    Load& settled(size_t slot) {
        for (size_t width = slots_; width > 1; width /= 2) push_down((slots_ + slot) / width);
        return nodes_[slots_ + slot];
    }

    void add(size_t begin, size_t end, int64_t nbytes) {
        if (begin < end) add(1, 0, slots_, begin, end, {nbytes, std::max<int64_t>(nbytes, 0)});
    }

    void add(size_t node, size_t first, size_t width, size_t begin, size_t end, const Load& load) {
        if (begin <= first && first + width <= end) return nodes_[node].then(load);
        push_down(node);
        const size_t half = width / 2;
        if (begin < first + half) add(2 * node, first, half, begin, end, load);
        if (end > first + half) add(2 * node + 1, first + half, half, begin, end, load);
    }

    /// Move the live slots together, but for that of `leaving`.
    void close_ranks(Id leaving) {
        slot_of_[static_cast<size_t>(leaving)] = unused;
        for (size_t node = 1; node < slots_; ++node) push_down(node);
        next_ = 0;
        for (size_t slot = 0; slot < slots_; ++slot) {
            const Id id = owner_[slot];
            const Load load = nodes_[slots_ + slot];
            nodes_[slots_ + slot] = {};
            if (slot_of_[static_cast<size_t>(id)] == slot) place(id, load);
        }
    }

    std::vector<Load> nodes_;
    std::vector<Id> owner_;
    std::vector<uint32_t> slot_of_;
    size_t slots_ = 1024;
    size_t next_ = 0;
};

}  // namespace accelera::trace
