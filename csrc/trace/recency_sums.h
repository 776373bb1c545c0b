#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/contract.h"

namespace accelera::trace {

using policy::Id;

/// Ids in the order of their last use, each with a weight; answers what weighs more recently used ids have.
///
/// Every use takes a new slot at the end. A tree of eight children per node holds the sums of slots: a use
/// reads and clears one line per level for the old slot, and adds to the last line of each for the new one.
/// When the slots are used up, the live ones move together, so that memory follows ids, not uses.
template <class Word>
class RecencySums {
  public:
    explicit RecencySums(size_t ids) : slot_of_(ids, unused) {
        size_t width = (2 * ids + smallest) / fan_out;
        owner_.resize(width * fan_out);
        for (; width > 0; width = width == 1 ? 0 : (width + fan_out - 1) / fan_out)
            levels_.emplace_back(width);
    }

    bool contains(Id id) const { return slot_of_[static_cast<size_t>(id)] != unused; }

    /// Make `id`, which is contained, no more so; return the sum of those used after it.
    Word take(Id id) {
        size_t index = slot_of_[static_cast<size_t>(id)];
        slot_of_[static_cast<size_t>(id)] = unused;
        const Word weight = levels_[0][index / fan_out][index % fan_out];
        Word after = 0;
        for (auto& level : levels_) {
            Line& line = level[index / fan_out];
            const size_t child = index % fan_out;
            line[child] -= weight;
            for (size_t i = 0; i < fan_out; ++i) after += i > child ? line[i] : 0;
            index /= fan_out;
        }
        return after;
    }

    /// Make `id`, which is not contained, the last used one.
    void append(Id id, Word weight) {
        if (next_ == owner_.size()) close_ranks();
        place(id, weight);
    }

  private:
    static constexpr size_t fan_out = 8;
    static constexpr size_t smallest = 1024;
    static constexpr uint32_t unused = UINT32_MAX;
    using Line = std::array<Word, fan_out>;

    void place(Id id, Word weight) {
        owner_[next_] = id;
        slot_of_[static_cast<size_t>(id)] = static_cast<uint32_t>(next_);
        size_t index = next_++;
        for (auto& level : levels_) {
            level[index / fan_out][index % fan_out] += weight;
            index /= fan_out;
        }
    }

    void close_ranks() {
        const std::vector<Line> weights = levels_[0];
        for (auto& level : levels_) std::fill(level.begin(), level.end(), Line{});
        next_ = 0;
        for (size_t slot = 0; slot < owner_.size(); ++slot) {
            const Id id = owner_[slot];
            if (slot_of_[static_cast<size_t>(id)] == slot) place(id, weights[slot / fan_out][slot % fan_out]);
        }
    }

    std::vector<std::vector<Line>> levels_;
    std::vector<Id> owner_;
    std::vector<uint32_t> slot_of_;
    size_t next_ = 0;
};

}  // namespace accelera::trace
