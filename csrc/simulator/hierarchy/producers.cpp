#include "simulator/hierarchy/producers.h"

#include <algorithm>

namespace accelera::simulator {

Producers::Producers(const PreparedTrace& trace) {
    std::vector<size_t> event_of;
    size_t begin = 0;
    for (size_t event = 0; event < trace.size(); ++event) {
        if (!trace.is_access(event)) continue;
        if (event_of.empty() || trace.step(event) != trace.step(event_of.back())) begin = event;
        event_of.push_back(event);
        step_begin_.push_back(begin);
    }
    until_.assign(event_of.size(), 0);
    find_ends(trace, event_of);
}

/// Backwards, step by step: what a step reads lasts until it is next written or freed, and what it updates
/// in place is gone already. Contents that are to be saved must exist until then.
void Producers::find_ends(const PreparedTrace& trace, const std::vector<size_t>& event_of) {
    std::vector<Time> end_of(static_cast<size_t>(trace.buffers()), policy::never);
    std::vector<Time> save_of(end_of);
    size_t event = trace.size();
    for (size_t after = event_of.size(); after > 0;) {
        size_t first = after;
        while (first > 0 && step_begin_[first - 1] == step_begin_[after - 1]) --first;
        for (; event > step_begin_[first]; --event) {
            const auto id = static_cast<size_t>(trace.buffer(event - 1));
            if (trace.kind(event - 1) == Kind::free) end_of[id] = static_cast<Time>(after);
            if (trace.kind(event - 1) == Kind::save) save_of[id] = static_cast<Time>(after);
        }
        end_step(trace, event_of, {first, after}, end_of, save_of);
        after = first;
    }
}

void Producers::end_step(const PreparedTrace& trace, const std::vector<size_t>& event_of, Accesses step,
                         std::vector<Time>& end_of, std::vector<Time>& save_of) {
    const auto buffer = [&](size_t time) { return static_cast<size_t>(trace.buffer(event_of[time])); };
    const auto writes = [&](size_t time) { return trace.kind(event_of[time]) == Kind::write; };
    for (size_t time = step.first; time < step.after; ++time)
        if (writes(time)) end_of[buffer(time)] = static_cast<Time>(step.first);
    Time until = policy::never;
    for (size_t time = step.first; time < step.after; ++time)
        if (!writes(time)) until = std::min(until, end_of[buffer(time)]);
    if (until < static_cast<Time>(step.after)) until = 0;
    for (size_t time = step.first; time < step.after; ++time)
        if (writes(time)) until_[time] = std::min(until, save_of[buffer(time)]);
    for (size_t time = step.first; time < step.after; ++time)
        if (writes(time)) save_of[buffer(time)] = policy::never;
}

}  // namespace accelera::simulator
