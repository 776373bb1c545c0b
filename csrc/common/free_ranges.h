#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace accelera {

/// Free ranges of addresses, by place and by size. Neighbours are joined.
///
/// Memory ends in destructors, which cannot fail, so only `reserve` allocates, before a block is taken.
/// n blocks separate at most n + 1 free ranges, so that many nodes are allocated in advance.
class FreeRanges {
  public:
    using ByPlace = std::map<int64_t, int64_t>;            ///< begin -> end
    using BySize = std::set<std::pair<int64_t, int64_t>>;  ///< (bytes, begin)

    FreeRanges(int64_t begin, int64_t end) {
        reserve(0);
        insert(begin, end);
    }
    /// Nothing but one range is free.
    void reset(int64_t begin, int64_t end) {
        while (!by_place_.empty()) erase(by_place_.begin());
        insert(begin, end);
    }

    const ByPlace& by_place() const { return by_place_; }
    const BySize& by_size() const { return by_size_; }

    /// Allocate the nodes of all ranges that this number of blocks can separate.
    void reserve(size_t blocks) {
        while (by_place_.size() + spare_places_.size() < blocks + 1) {
            ByPlace place{{--spare_, 0}};
            BySize size{{spare_, 0}};
            spare_places_.insert(place.extract(place.begin()));
            spare_sizes_.insert(size.extract(size.begin()));
        }
    }
    /// Take the bytes of a block out of the range that starts at `begin`.
    void take(int64_t begin, int64_t block_begin, int64_t block_end) noexcept {
        const auto range = by_place_.find(begin);
        const int64_t end = range->second;
        erase(range);
        insert(begin, block_begin);
        insert(block_end, end);
    }
    /// Merge the bytes of a block with adjacent ranges. Returns the merged range.
    std::pair<int64_t, int64_t> give(int64_t begin, int64_t end) noexcept {
        if (const auto next = by_place_.find(end); next != by_place_.end()) {
            end = next->second;
            erase(next);
        }
        if (const auto after = by_place_.lower_bound(begin); after != by_place_.begin()) {
            if (const auto before = std::prev(after); before->second == begin) {
                begin = before->first;
                erase(before);
            }
        }
        insert(begin, end);
        return {begin, end};
    }

  private:
    void insert(int64_t begin, int64_t end) noexcept {
        if (begin >= end) return;
        auto place = spare_places_.extract(spare_places_.begin());
        place.key() = begin;
        place.mapped() = end;
        by_place_.insert(std::move(place));
        auto size = spare_sizes_.extract(spare_sizes_.begin());
        size.value() = {end - begin, begin};
        by_size_.insert(std::move(size));
    }
    void erase(ByPlace::const_iterator range) noexcept {
        auto size = by_size_.extract({range->second - range->first, range->first});
        auto place = by_place_.extract(range);
        place.key() = --spare_;
        spare_places_.insert(std::move(place));
        size.value() = {spare_, 0};
        spare_sizes_.insert(std::move(size));
    }

    ByPlace by_place_, spare_places_;
    BySize by_size_, spare_sizes_;
    int64_t spare_ = 0;  ///< key of the latest spare nodes, which are negative
};

}  // namespace accelera
