#pragma once

#include "simulator/hierarchy_home.h"
#include "simulator/hierarchy_origins.h"
#include "simulator/hierarchy_tier.h"

namespace accelera::simulator {

/// Making a buffer again instead of moving it there and back.
///
/// A dirty victim is dropped when its next read comes while the step that made it finds its inputs unchanged
/// in the home, and repeating that step is faster than writing and fetching the buffer.
class Remaking {
  public:
    Remaking(const PreparedTrace& trace, const Conduct& conduct) : trace_(trace), conduct_(conduct) {}

    template <class P>
    bool pays(const Tier<P>& top, const Home& home, const Link& link, Id id) const {
        if (conduct_.origins == nullptr) return false;
        const Copy& copy = top[id];
        const Time next = conduct_.next_read[static_cast<size_t>(copy.last)];
        if (next >= policy::kept || !conduct_.origins->repeatable(copy.made, next)) return false;
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
        const auto step = static_cast<size_t>(trace_.step(conduct_.origins->step_begin(made)));
        return step < conduct_.seconds.size ? conduct_.seconds[step] : 0.0;
    }

    template <class Visit>
    void for_each_input(Time made, Visit&& visit) const {
        const size_t begin = conduct_.origins->step_begin(made);
        for (size_t event = begin; event < trace_.size(); ++event) {
            if (!trace_.is_access(event)) continue;
            if (trace_.step(event) != trace_.step(begin)) return;
            if (trace_.kind(event) == Kind::read) visit(trace_.buffer(event));
        }
    }

  private:
    const PreparedTrace& trace_;
    const Conduct& conduct_;
};

}  // namespace accelera::simulator
