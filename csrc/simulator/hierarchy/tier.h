#pragma once

#include <stdexcept>
#include <string>

#include "common/error.h"
#include "simulator/hierarchy/link.h"

namespace accelera::simulator {

/// A buffer's place in one tier. Pins count even while it is absent: somebody may hold what was streamed.
struct alignas(32) Copy {
    /// When the contents have arrived. Of what is absent: when they are in the next tier, if they were saved
    /// on leaving; a copy that was clean had come from there, so its next move is behind that one anyway.
    double ready_s = 0.0;
    int64_t nbytes = 0;
    int32_t pins = 0;
    /// The last access.
    Time last = 0;
    /// The last write.
    Time made = 0;
    bool here = false;
    /// Whether the next tier lacks these contents.
    bool dirty = false;
    /// Whether it left unsaved, to be made again when it is next read.
    bool dropped = false;
};

/// The books of one tier: who is here, pinned and dirty, inside a hard capacity. The same accounts as the
/// pool's ledger keeps, and the room over time.
template <class P>
class Tier {
  public:
    Tier(P& policy, int64_t capacity_bytes, const PreparedTrace& trace)
        : policy_(policy),
          capacity_bytes_(capacity_bytes),
          room_(capacity_bytes),
          copies_(static_cast<size_t>(trace.buffers())) {
        for (Id id = 0; id < trace.buffers(); ++id) (*this)[id].nbytes = trace.bytes(id);
    }

    Copy& operator[](Id id) { return copies_[static_cast<size_t>(id)]; }
    const Copy& operator[](Id id) const { return copies_[static_cast<size_t>(id)]; }
    /// Say that `id` is accessed soon, at about `time`.
    void expect(Id id, Time time) const {
        policy_.expect(id, time);
        __builtin_prefetch(&copies_[static_cast<size_t>(id)], 1);
    }
    P& policy() { return policy_; }
    TierFigures& figures() { return figures_; }
    const TierFigures& figures() const { return figures_; }
    Room& room() { return room_; }
    int64_t occupied_bytes() const { return occupied_bytes_; }

    bool fits(int64_t nbytes) const { return pinned_bytes_ + nbytes <= capacity_bytes_; }
    bool lacks_room(int64_t nbytes) const { return occupied_bytes_ + nbytes > capacity_bytes_; }

    void pin(Id id) {
        Copy& copy = (*this)[id];
        if (copy.pins++ == 0 && copy.here) pinned_bytes_ += copy.nbytes;
    }
    void unpin(Id id) {
        Copy& copy = (*this)[id];
        if (copy.pins == 0) return;
        --copy.pins;
        if (copy.pins == 0 && copy.here) pinned_bytes_ -= copy.nbytes;
    }
    void drop_pins(Id id) {
        Copy& copy = (*this)[id];
        if (copy.pins > 0 && copy.here) pinned_bytes_ -= copy.nbytes;
        copy.pins = 0;
    }

    void touch(Id id, Time time, bool write) {
        ++figures_.hits;
        policy_.touch(id, time, write);
        note(id, time, write);
    }
    /// Count an access that finds nothing here.
    void miss(Id id, bool write) {
        ++figures_.misses;
        (write ? figures_.created_bytes : figures_.fetched_bytes) += (*this)[id].nbytes;
    }
    void insert(Id id, Time time, bool write, double ready_s) {
        Copy& copy = (*this)[id];
        policy_.insert(id, copy.nbytes, time, write);
        copy.here = true;
        copy.dropped = false;
        copy.ready_s = ready_s;
        note(id, time, write);
        occupied_bytes_ += copy.nbytes;
        pinned_bytes_ += copy.pins > 0 ? copy.nbytes : 0;
        figures_.peak_bytes = std::max(figures_.peak_bytes, occupied_bytes_);
    }

    /// The policy's choice among those nobody holds.
    Id victim() {
        const Id id = policy_.victim([this](Id each) { return (*this)[each].pins == 0; });
        if (id < 0 || static_cast<size_t>(id) >= copies_.size() || !(*this)[id].here || (*this)[id].pins > 0)
            throw ArgumentError("[simulate] the policy named " + std::to_string(id) +
                                " as the victim, which is not an evictable resident buffer; victim() "
                                "must return one for which evictable(buffer) is true");
        ++figures_.evictions;
        figures_.evicted_bytes += (*this)[id].nbytes;
        return id;
    }
    bool must_save(Id id) { return (*this)[id].dirty && !policy_.dead(id); }

    /// Take a departed buffer off the books: saved at `saved_s`, if it was.
    void forget(Id id, double saved_s, double now_s) {
        Copy& copy = (*this)[id];
        copy.here = copy.dirty = false;
        occupied_bytes_ -= copy.nbytes;
        room_.give(copy.nbytes, std::max(saved_s, copy.ready_s), now_s);
        copy.ready_s = saved_s;
    }

  private:
    void note(Id id, Time time, bool write) {
        Copy& copy = (*this)[id];
        copy.last = time;
        if (write) {
            copy.made = time;
            copy.dirty = true;
        }
    }

    P& policy_;
    const int64_t capacity_bytes_;
    Room room_;
    std::vector<Copy> copies_;
    TierFigures figures_;
    int64_t occupied_bytes_ = 0;
    int64_t pinned_bytes_ = 0;
};

}  // namespace accelera::simulator
