#pragma once

#include "simulator/hierarchy/recompute.h"

namespace accelera::simulator {

/// The tiers above one another and the links between them: data is obtained from below, and stored there.
/// Level 0 is the fastest tier; the level below the last cache is the home.
template <class P>
class Stack {
  public:
    Stack(const std::vector<P*>& policies, const PreparedTrace& trace, const Machine& machine,
          const ReplayOptions& options)
        : home_(trace), recompute_(trace, options), history_(options.history) {
        tiers_.reserve(policies.size());
        for (size_t level = 0; level < policies.size(); ++level)
            tiers_.emplace_back(*policies[level], machine.capacities[level], trace);
        for (const LinkSpec& spec : machine.links) links_.emplace_back(spec);
    }

    Tier<P>& top() { return tiers_.front(); }
    const std::vector<Tier<P>>& tiers() const { return tiers_; }
    const std::vector<Link>& links() const { return links_; }
    const Home& home() const { return home_; }
    const Recompute& recompute() const { return recompute_; }

    /// Say that `id` is accessed soon.
    void expect(Id id, Time time) const { tiers_.front().expect(id, time); }

    /// Steps admitted from here on begin no move before `now_s`.
    void set_now(double now_s) { now_s_ = std::max(now_s_, now_s); }
    double now_s() const { return now_s_; }

    /// Read absent `id` into `level`, and pin it there, or past it where it does not fit; returns when it
    /// has arrived.
    double obtain(size_t level, Id id, Time time) {
        if (level == tiers_.size()) return tiers_.back()[id].ready_s;
        Tier<P>& tier = tiers_[level];
        if (tier[id].here) {
            tier.touch(id, time, false);
            tier.pin(id);
            return tier[id].ready_s;
        }
        const int64_t nbytes = tier[id].nbytes;
        const bool stays = tier.fits(nbytes);
        tier.miss(id, false);
        if (stays) tier.policy().miss(id, nbytes, time, false);
        const double below_s = obtain(level + 1, id, time);
        const double room_s = stays ? make_room(level, nbytes) : 0.0;
        const double arrival_s = move_towards(level, id, std::max({now_s_, below_s, room_s}));
        if (level + 1 < tiers_.size()) tiers_[level + 1].unpin(id);
        if (stays) tier.insert(id, time, false, arrival_s);
        if (stays && level == 0 && history_) note_bytes(history_->moves.begin_s.back());
        tier.pin(id);
        return arrival_s;
    }

    /// Bring absent `id` to the top tier's arithmetic without a place there; returns when it has arrived.
    double carry(Id id) {
        size_t level = 1;
        while (level < tiers_.size() && !tiers_[level][id].here) ++level;
        double ready_s = tiers_[std::min(level, tiers_.size() - 1)][id].ready_s;
        while (level-- > 0) ready_s = move_towards(level, id, std::max(now_s_, ready_s));
        top().figures().fetched_bytes += top()[id].nbytes;
        return ready_s;
    }

    /// Make absent `id` anew in the top tier, where it fits, for an access that writes or for one that reads
    /// what was dropped; returns when there is room for it.
    double create(Id id, Time time, bool write) {
        Tier<P>& tier = top();
        const int64_t nbytes = tier[id].nbytes;
        tier.policy().miss(id, nbytes, time, write);
        const double ready_s = std::max(now_s_, make_room(0, nbytes));
        tier.insert(id, time, write, ready_s);
        tier[id].dirty = true;
        if (history_) note_bytes(ready_s);
        return ready_s;
    }

    /// Write a dirty buffer of `level` to the next tier; returns when it is there.
    double save(size_t level, Id id) {
        Copy& copy = tiers_[level][id];
        copy.dirty = false;
        tiers_[level].figures().saved_bytes += copy.nbytes;
        return store(level + 1, id, copy.last, std::max(now_s_, copy.ready_s));
    }

    /// Write contents that never were in the top tier to the next one.
    void stream_out(Id id, Time time, double ready_s) {
        top().figures().saved_bytes += top()[id].nbytes;
        store(1, id, time, ready_s);
    }

    /// Let `id` leave the top tier on request.
    void evict_explicit(Id id) {
        const double saved_s = top().must_save(id) ? save(0, id) : 0.0;
        remove(0, id, saved_s);
    }

    /// The contents of `id` are set anew in the top tier: copies below are worth nothing.
    void invalidate(Id id) {
        top()[id].dropped = false;
        for (size_t level = 1; level < tiers_.size(); ++level) remove(level, id, 0.0);
        home_.invalidate(id);
    }

    /// End a life: no copy is kept, and nothing is left to wait for.
    void free(Id id) {
        top().drop_pins(id);
        top()[id].dropped = false;
        for (size_t level = 0; level < tiers_.size(); ++level) remove(level, id, 0.0);
        tiers_.back()[id].ready_s = 0.0;
        home_.free(id);
    }

  private:
    /// Carry `id` over link `level` to the faster tier, or `away` from it, once it is `ready_s`; returns when
    /// it is there.
    double move(size_t level, Id id, bool away, double ready_s) {
        Link& link = links_[level];
        const int64_t nbytes = top()[id].nbytes;
        const double begin_s = away ? link.away_begin_s(ready_s) : link.towards_begin_s(ready_s);
        const double end_s = away ? link.away(nbytes, ready_s) : link.towards(nbytes, ready_s);
        if (history_) history_->move(level, away, id, nbytes, begin_s, end_s);
        return end_s;
    }
    double move_towards(size_t level, Id id, double ready_s) { return move(level, id, false, ready_s); }
    double move_away(size_t level, Id id, double ready_s) { return move(level, id, true, ready_s); }

    /// Write down what the top tier holds since `since_s`.
    void note_bytes(double since_s) { history_->hold(top().occupied_bytes(), since_s); }

    /// Write `id`, whose contents are ready in the tier above, into `level`; returns when it is there.
    double store(size_t level, Id id, Time time, double ready_s) {
        const int64_t nbytes = top()[id].nbytes;
        if (level == tiers_.size()) {
            const double stored_s = move_away(level - 1, id, ready_s);
            home_.store(id);
            Copy& last = tiers_.back()[id];
            if (!last.here) last.ready_s = stored_s;
            return stored_s;
        }
        Tier<P>& tier = tiers_[level];
        if (tier[id].here) {
            tier.touch(id, time, true);
            return tier[id].ready_s = move_away(level - 1, id, std::max(ready_s, tier[id].ready_s));
        }
        if (!tier.fits(nbytes)) {
            const double passed_s = move_away(level - 1, id, ready_s);
            tier.figures().saved_bytes += nbytes;
            return store(level + 1, id, time, passed_s);
        }
        tier.miss(id, true);
        tier.policy().miss(id, nbytes, time, true);
        const double room_s = make_room(level, nbytes);
        const double stored_s = move_away(level - 1, id, std::max(ready_s, room_s));
        tier.insert(id, time, true, stored_s);
        return stored_s;
    }

    /// Evict from `level` until `nbytes` fit, and take that room; returns when it is usable.
    double make_room(size_t level, int64_t nbytes) {
        Tier<P>& tier = tiers_[level];
        while (tier.lacks_room(nbytes)) {
            const Id victim = tier.victim();
            const double saved_s = tier.must_save(victim) ? write_back(level, victim) : 0.0;
            tier.policy().evict(victim);
            tier.forget(victim, saved_s, now_s_);
        }
        return tier.room().take(nbytes);
    }

    /// Save a dirty victim, unless it is to be made again; returns when it may go.
    double write_back(size_t level, Id id) {
        if (level > 0 || !recompute_.pays(top(), home_, links_.front(), id)) return save(level, id);
        top()[id].dropped = true;
        return 0.0;
    }

    void remove(size_t level, Id id, double saved_s) {
        Tier<P>& tier = tiers_[level];
        if (!tier[id].here) return;
        tier.policy().remove(id);
        tier.forget(id, saved_s, now_s_);
        if (level == 0 && history_) note_bytes(now_s_);
    }

    std::vector<Tier<P>> tiers_;
    std::vector<Link> links_;
    Home home_;
    Recompute recompute_;
    History* history_;
    double now_s_ = 0.0;
};

}  // namespace accelera::simulator
