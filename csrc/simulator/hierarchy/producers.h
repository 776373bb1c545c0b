#pragma once

#include <vector>

#include "simulator/hierarchy/prepared_trace.h"

namespace accelera::simulator {

/// Where contents come from: which step made them, and how long it could make them again.
class Producers {
  public:
    explicit Producers(const PreparedTrace& trace);

    /// Whether the step that wrote at time `made` finds its inputs unchanged at time `when`.
    bool repeatable(Time made, Time when) const { return when < until_[static_cast<size_t>(made)]; }
    /// The first event of the step of access `time`.
    size_t step_begin(Time time) const { return step_begin_[static_cast<size_t>(time)]; }

  private:
    /// Accesses of one step, by time.
    struct Accesses {
        size_t first;
        size_t after;
    };

    void find_ends(const PreparedTrace& trace, const std::vector<size_t>& event_of);
    void end_step(const PreparedTrace& trace, const std::vector<size_t>& event_of, Accesses step,
                  std::vector<Time>& end_of, std::vector<Time>& save_of);

    std::vector<size_t> step_begin_;
    /// Per access that writes, when the first of its step's inputs is written or freed; 0: cannot be
    /// repeated.
    std::vector<Time> until_;
};

}  // namespace accelera::simulator
