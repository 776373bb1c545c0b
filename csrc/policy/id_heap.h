#pragma once

#include <algorithm>
#include <vector>

#include "policy/contract.h"

namespace accelera::policy {

/// Where in its heap an id stands; an id is in at most one of the heaps that share them.
using Places = ById<int32_t>;

/// Ids by a changing key, the highest on top; among equal keys the one whose stamp is oldest.
///
/// A heap with four children per entry, which lie side by side, and an index from ids to places: set and
/// erase cost O(log n), `first` O(1) plus O(k log k) for k that are passed over.
class IdHeap {
  public:
    explicit IdHeap(Places& places) : places_(&places) {}

    bool empty() const { return entries_.empty(); }
    Id top() const { return entries_.front().id; }
    double top_key() const { return entries_.front().key; }

    void push(Id id, double key, Time stamp) {
        entries_.emplace_back();
        settle_up(entries_.size() - 1, {key, stamp, id});
    }

    /// Give an id that is here another key.
    void update(Id id, double key, Time stamp) { settle(place_of(id), {key, stamp, id}); }

    void erase(Id id) {
        const size_t place = place_of(id);
        const Entry last = entries_.back();
        entries_.pop_back();
        if (place < entries_.size()) settle(place, last);
    }

    double key_of(Id id) const { return entries_[place_of(id)].key; }

    /// The first from the top for which `wanted` holds, or none; nothing is changed.
    template <class Wanted>
    Id first(Wanted&& wanted) const {
        if (empty() || wanted(top())) return empty() ? none : top();
        const auto later = [this](size_t a, size_t b) { return entries_[b].before(entries_[a]); };
        std::vector<size_t> frontier;
        const auto open_children = [&](size_t place) {
            const size_t end = std::min(children_of(place) + children, entries_.size());
            for (size_t child = children_of(place); child < end; ++child) {
                frontier.push_back(child);
                std::push_heap(frontier.begin(), frontier.end(), later);
            }
        };
        open_children(0);
        while (!frontier.empty()) {
            std::pop_heap(frontier.begin(), frontier.end(), later);
            const size_t place = frontier.back();
            frontier.pop_back();
            if (wanted(entries_[place].id)) return entries_[place].id;
            open_children(place);
        }
        return none;
    }

  private:
    struct Entry {
        double key;
        Time stamp;
        Id id;

        bool before(const Entry& other) const {
            return key > other.key || (key == other.key && stamp < other.stamp);
        }
    };

    static constexpr size_t children = 4;
    static size_t children_of(size_t place) { return place * children + 1; }

    size_t place_of(Id id) const { return static_cast<size_t>(places_->at(id)); }

    void put(size_t place, const Entry& entry) {
        entries_[place] = entry;
        (*places_)[entry.id] = static_cast<int32_t>(place);
    }

    void settle(size_t place, const Entry& entry) {
        if (place > 0 && entry.before(entries_[(place - 1) / children])) {
            settle_up(place, entry);
        } else {
            settle_down(place, entry);
        }
    }

    void settle_up(size_t place, const Entry& entry) {
        while (place > 0) {
            const size_t parent = (place - 1) / children;
            if (!entry.before(entries_[parent])) break;
            put(place, entries_[parent]);
            place = parent;
        }
        put(place, entry);
    }

    void settle_down(size_t place, const Entry& entry) {
        for (size_t child = children_of(place); child < entries_.size(); child = children_of(place)) {
            const size_t end = std::min(child + children, entries_.size());
            for (size_t other = child + 1; other < end; ++other) {
                if (entries_[other].before(entries_[child])) child = other;
            }
            if (!entries_[child].before(entry)) break;
            put(place, entries_[child]);
            place = child;
        }
        put(place, entry);
    }

    Places* places_;
    std::vector<Entry> entries_;
};

}  // namespace accelera::policy
