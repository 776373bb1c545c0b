#pragma once

#include <algorithm>
#include <vector>

#include "simulator/hierarchy/replay.h"

namespace accelera::simulator {

/// A link between two tiers: a queue of moves for each direction, or one for both.
class Link {
  public:
    explicit Link(const LinkSpec& spec) : spec_(spec) {}

    /// Bring data to the faster tier, not before `ready_s`; returns when it is there.
    double towards(int64_t nbytes, double ready_s) {
        return move(nbytes, ready_s, spec_.towards_s_per_byte, towards_free_s_, figures_.towards);
    }
    /// Bring data to the slower tier.
    double away(int64_t nbytes, double ready_s) {
        return move(nbytes, ready_s, spec_.away_s_per_byte, spec_.duplex ? away_free_s_ : towards_free_s_,
                    figures_.away);
    }
    double towards_s(int64_t nbytes) const {
        return spec_.latency_s + double(nbytes) * spec_.towards_s_per_byte;
    }
    double away_s(int64_t nbytes) const { return spec_.latency_s + double(nbytes) * spec_.away_s_per_byte; }

    /// When a move that is ready at `ready_s` would begin.
    double towards_begin_s(double ready_s) const { return std::max(towards_free_s_, ready_s); }
    double away_begin_s(double ready_s) const {
        return std::max(spec_.duplex ? away_free_s_ : towards_free_s_, ready_s);
    }
    double idle_from_s() const { return std::max(towards_free_s_, away_free_s_); }
    const LinkFigures& figures() const { return figures_; }

  private:
    double move(int64_t nbytes, double ready_s, double s_per_byte, double& free_s, Flow& flow) {
        const double took_s = spec_.latency_s + static_cast<double>(nbytes) * s_per_byte;
        free_s = std::max(free_s, ready_s) + took_s;
        ++flow.moves;
        flow.bytes += nbytes;
        flow.busy_s += took_s;
        return free_s;
    }

    LinkSpec spec_;
    double towards_free_s_ = 0.0;
    double away_free_s_ = 0.0;
    LinkFigures figures_;
};

/// The room of one tier over time: a buffer that is still being written back leaves its room later.
class Room {
  public:
    explicit Room(int64_t capacity_bytes) : idle_bytes_(capacity_bytes) {}

    /// Give back room that is usable from `ready_s` on; `now_s` is the present.
    void give(int64_t nbytes, double ready_s, double now_s) {
        if (ready_s <= now_s) {
            idle_bytes_ += nbytes;
        } else if (nbytes > 0) {
            leaving_.push_back({ready_s, nbytes});
        }
    }

    /// Take room, the idle first, then in the order of departure; returns when all of it is usable.
    double take(int64_t nbytes) {
        double ready_s = 0.0;
        const int64_t idle = std::min(nbytes, idle_bytes_);
        idle_bytes_ -= idle;
        for (nbytes -= idle; nbytes > 0 && next_ < leaving_.size();) {
            Leaving& first = leaving_[next_];
            const int64_t part = std::min(nbytes, first.nbytes);
            ready_s = std::max(ready_s, first.ready_s);
            nbytes -= part;
            first.nbytes -= part;
            next_ += first.nbytes == 0;
        }
        if (next_ == leaving_.size()) {
            leaving_.clear();
            next_ = 0;
        }
        return ready_s;
    }

  private:
    struct Leaving {
        double ready_s;
        int64_t nbytes;
    };

    int64_t idle_bytes_;
    std::vector<Leaving> leaving_;
    size_t next_ = 0;
};

/// When steps compute: one after the other, each when its operands have arrived.
class Timeline {
  public:
    /// Make the step being admitted wait for data that arrives at `ready_s`.
    void await(double ready_s) { arrival_s_ = std::max(arrival_s_, ready_s); }
    /// Add arithmetic to the step being admitted.
    void add(double seconds) { extra_s_ += seconds; }

    /// When the admitted step begins to compute, as far as its operands are known.
    double begin_s() const { return std::max(done_s_, arrival_s_); }
    /// Compute the admitted step; returns when it is done.
    double compute(double seconds) {
        const double start_s = begin_s();
        stall_s_ += start_s - done_s_;
        compute_s_ += seconds + extra_s_;
        done_s_ = start_s + seconds + extra_s_;
        arrival_s_ = extra_s_ = 0.0;
        return done_s_;
    }

    double done_s() const { return done_s_; }
    double stall_s() const { return stall_s_; }
    double compute_s() const { return compute_s_; }

  private:
    double done_s_ = 0.0;
    double arrival_s_ = 0.0;
    double extra_s_ = 0.0;
    double stall_s_ = 0.0;
    double compute_s_ = 0.0;
};

}  // namespace accelera::simulator
