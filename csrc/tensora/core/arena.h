#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace accelera::tensora {

/// Bytes of a block in an arena.
constexpr int64_t block_bytes_of(int64_t nbytes) { return (nbytes < 1 ? 64 : nbytes + 63) / 64 * 64; }

/// Free and used parts of a range of bytes. Sizes and places are multiples of 64.
class AddressRanges {
  public:
    explicit AddressRanges(int64_t capacity) { reset(capacity); }
    void reset(int64_t capacity);

    /// Place of a block in the smallest gap that has room for it, at the gap's beginning or at its end; -1 if
    /// there is none.
    int64_t take(int64_t nbytes, bool at_end = false);
    /// The same, in the first gap that has room: where it is does not depend on the capacity.
    int64_t take_first(int64_t nbytes);
    /// Whether these bytes were free; they are used now.
    bool take_at(int64_t place, int64_t nbytes);
    void give(int64_t place);

    int64_t capacity() const { return capacity_; }
    int64_t used_bytes() const { return used_bytes_; }
    int64_t largest_gap() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
    /// Gaps, by their beginnings.
    const std::map<int64_t, int64_t>& gaps() const { return gaps_; }

  private:
    void insert_gap(int64_t begin, int64_t end);
    void erase_gap(int64_t begin, int64_t end);
    void carve(int64_t begin, int64_t end, int64_t place, int64_t nbytes);

    int64_t capacity_ = 0;
    int64_t used_bytes_ = 0;
    std::map<int64_t, int64_t> gaps_;                // begin -> end
    std::set<std::pair<int64_t, int64_t>> by_size_;  // (bytes, begin)
    std::map<int64_t, int64_t> used_;                // begin -> bytes
};

/// Memory of a training step: one mapping, whose size is never exceeded.
class Arena {
  public:
    /// Throws Error(memory) when the system does not give the addresses.
    explicit Arena(int64_t capacity);
    ~Arena();
    Arena(const Arena&) = delete;

    char* at(int64_t place) const { return base_ + place; }
    /// Give the pages of free ranges back to the system.
    void give_back_pages();
    AddressRanges ranges;

  private:
    char* base_ = nullptr;
    int64_t mapped_ = 0;
};

}  // namespace accelera::tensora
