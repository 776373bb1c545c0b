#pragma once

#include <algorithm>
#include <array>

#include "policy/id_heap.h"

namespace accelera::policy {

/// Move the fewest bytes, knowing the future: furthest next read first, weighed by what leaving would move.
///
/// 1. Who leaves for nothing goes first: the dead (freed or set anew before they are read), and whoever is
///    never read again and lies unchanged below. `dead` says that they need no write-back.
/// 2. Then, furthest next read first, whoever a plan drops: a score of at least 1/2, where scores are given.
/// 3. Then whoever has the largest (accesses until the next read) / (moves that leaving costs)^2. Leaving
///    costs a clean buffer one move, the fetch; one with new contents two, the write-back and the fetch; a
///    result that nobody reads again one, the write-back, as late as the end.
///
/// The square was found by experiment: it moves less than Belady's rule (power 0) and than cost per byte and
/// time (power 1) on training steps of six models. Each group has a heap of its own, as within a group the
/// order does not change with time.
class Planner : public Policy {
  public:
    static constexpr unsigned needs = Knowledge::reads;

    explicit Planner(const Knowledge& known)
        : next_read_(known.next_read),
          dropped_(known.score),
          places_(known.buffers),
          state_(known.buffers),
          groups_{IdHeap(places_), IdHeap(places_), IdHeap(places_), IdHeap(places_)} {}

    void insert(Id id, int64_t, Time time, bool write) {
        state_[id].changed = write;
        join(id, time);
    }
    void touch(Id id, Time time, bool write) {
        groups_[state_[id].group].erase(id);
        state_[id].changed |= write;
        join(id, time);
    }
    void evict(Id id) { groups_[state_[id].group].erase(id); }
    void remove(Id id) { groups_[state_[id].group].erase(id); }
    bool dead(Id id) const { return state_.at(id).next_read == never; }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        for (const Group group : {for_nothing, dropped}) {
            const Id found = groups_[group].first(evictable);
            if (found != none) return found;
        }
        const Id once = groups_[one_move].first(evictable);
        const Id twice = groups_[two_moves].first(evictable);
        if (once == none || twice == none) return once == none ? twice : once;
        return 4 * distance(once) >= distance(twice) ? once : twice;
    }

  private:
    enum Group : uint8_t { for_nothing, dropped, one_move, two_moves };

    struct State {
        Time next_read = never;
        bool changed = false;
        Group group = for_nothing;
    };

    void join(Id id, Time time) {
        now_ = time;
        State& state = state_[id];
        state.next_read = next_read_.get(time, kept);
        state.group = group_of(state, time);
        groups_[state.group].push(id, static_cast<double>(due(id)), time);
    }

    Group group_of(const State& state, Time time) const {
        const bool read_again = state.next_read < kept;
        if (state.next_read == never || (!read_again && !state.changed)) return for_nothing;
        if (dropped_.get(time, 0.0) >= 0.5) return dropped;
        return read_again && state.changed ? two_moves : one_move;
    }

    /// When its contents are needed: a result, at the end.
    int64_t due(Id id) const {
        return std::min(static_cast<int64_t>(state_.at(id).next_read), static_cast<int64_t>(next_read_.size));
    }
    int64_t distance(Id id) const { return due(id) - now_; }

    Span<Time> next_read_;
    Span<double> dropped_;
    Places places_;
    ById<State> state_;
    std::array<IdHeap, 4> groups_;
    Time now_ = 0;
};

}  // namespace accelera::policy
