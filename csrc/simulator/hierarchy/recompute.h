#pragma once

#include "simulator/hierarchy/home.h"
#include "simulator/hierarchy/producers.h"
#include "simulator/hierarchy/tier.h"

namespace accelera::simulator {

/// Making a buffer again instead of moving it there and back.
///
/// A dirty victim is dropped when its next read comes while the step that made it finds its inputs unchanged
/// in the home, and repeating that step is faster than writing and fetching the buffer.
class Recompute {
  public:
    Recompute(const PreparedTrace& trace, const ReplayOptions& options) : trace_(trace), options_(options) {}

    template <class P>
    bool pays(const Tier<P>& top, const Home& home, const Link& link, Id id) const {
        if (options_.producers == nullptr) return false;
        const Copy& copy = top[id];
        const Time next = options_.next_read[static_cast<size_t>(copy.last)];
        if (next >= policy::kept || !options_.producers->repeatable(copy.made, next)) return false;
        double again_s = seconds(copy.made);
        bool at_hand = true;
        for_each_input(copy.made, [&](Id input) {
            at_hand &= home.is_current(input);
            if (!top[input].here) again_s += link.towards_s(top[input].nbytes);
        });
        return at_hand && again_s < link.away_s(copy.nbytes) + link.towards_s(copy.nbytes);
    }

    /// What the step that wrote at time `made` computes in.
    double seconds(Time made) const {
        const auto step = static_cast<size_t>(trace_.step(options_.producers->step_begin(made)));
        return step < options_.seconds.size ? options_.seconds[step] : 0.0;
    }

    template <class Visit>
    void for_each_input(Time made, Visit&& visit) const {
        const size_t begin = options_.producers->step_begin(made);
        for (size_t event = begin; event < trace_.size(); ++event) {
            if (!trace_.is_access(event)) continue;
            if (trace_.step(event) != trace_.step(begin)) return;
            if (trace_.kind(event) == Kind::read) visit(trace_.buffer(event));
        }
    }

  private:
    const PreparedTrace& trace_;
    const ReplayOptions& options_;
};

}  // namespace accelera::simulator
