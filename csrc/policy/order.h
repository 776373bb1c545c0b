#pragma once

#include <algorithm>
#include <vector>

#include "policy/contract.h"

namespace accelera::policy {

/// Learns an order that comes round again: what followed this place the last time follows it now.
///
/// 1. What is noted makes a history; each entry knows the entries before and after it with the same id.
/// 2. Every entry looks for its counterpart: the entry after the counterpart of the one before, if that has
///    the same id; else, of the latest entries with the same id, the one before which most of the history is
///    the same as now, of equal ones the latest.
/// 3. What follows the counterpart is expected next; when that reaches the present, it goes on where it
///    began.
///
/// Positions count from 0 and are never used twice; the latest `most_entries` are remembered.
class Order {
  public:
    using Position = int64_t;

    static constexpr Position nowhere = -1;
    static constexpr Position most_entries = 1 << 20;

    explicit Order(Id expected = 0) : last_(expected, nowhere), entries_(first_entries) {}

    /// Append `id`; its position is `latest`, its counterpart `place`.
    void note(Id id) {
        if (end_ == static_cast<Position>(entries_.size())) grow();
        const Position before = remembered(last_[id]) ? last_[id] : nowhere;
        const Position expected = place_ == nowhere ? nowhere : place_ + 1;
        at(end_) = {id, 0, distance(before, end_)};
        if (before != nowhere) at(before).to_next = distance(before, end_);
        last_[id] = end_++;
        if (expected != nowhere && remembered(expected) && at(expected).id == id && expected < latest()) {
            place_ = expected;
        } else {
            place_ = counterpart();
        }
    }

    Position latest() const { return end_ - 1; }
    /// The counterpart of the latest entry, or nowhere.
    Position place() const { return place_; }

    /// The position of the next entry with the id of `position`, or nowhere.
    Position next(Position position) const {
        const int32_t step = remembered(position) ? at(position).to_next : 0;
        return step ? position + step : nowhere;
    }

    /// What is expected as the k-th from now, counted from 1; none when there is no counterpart.
    Id ahead(int64_t k) const {
        if (place_ == nowhere) return none;
        const Position position = place_ + 1 + (k - 1) % (latest() - place_);
        return at(position).id;
    }

  private:
    struct Entry {
        Id id = none;
        int32_t to_next = 0;
        int32_t to_previous = 0;
    };

    static constexpr size_t first_entries = 1 << 10;
    static constexpr int most_candidates = 16;
    static constexpr Position longest_match = 8;

    Entry& at(Position position) { return entries_[index(position)]; }
    const Entry& at(Position position) const { return entries_[index(position)]; }
    size_t index(Position position) const { return static_cast<size_t>(position) & (entries_.size() - 1); }
    bool remembered(Position position) const {
        return position >= 0 && position > end_ - static_cast<Position>(entries_.size());
    }
    static int32_t distance(Position from, Position to) {
        return from == nowhere ? 0 : static_cast<int32_t>(to - from);
    }

    /// While there are few entries none is overwritten, so each stays where it is.
    void grow() {
        if (end_ < most_entries) entries_.resize(2 * entries_.size());
    }

    Position counterpart() const {
        Position best = nowhere;
        Position best_length = -1;
        Position candidate = latest();
        for (int tried = 0; tried < most_candidates; ++tried) {
            const int32_t step = at(candidate).to_previous;
            candidate -= step;
            if (step == 0 || !remembered(candidate)) break;
            const Position length = common(candidate);
            if (length > best_length) {
                best = candidate;
                best_length = length;
            }
        }
        return best;
    }

    /// How many entries before `position` are the same as before the latest one.
    Position common(Position position) const {
        Position length = 0;
        while (length < longest_match && remembered(position - length - 1) &&
               at(position - length - 1).id == at(latest() - length - 1).id)
            ++length;
        return length;
    }

    ById<Position> last_;
    std::vector<Entry> entries_;
    Position end_ = 0;
    Position place_ = nowhere;
};

}  // namespace accelera::policy
