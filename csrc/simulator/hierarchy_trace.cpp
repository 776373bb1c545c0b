#include "simulator/hierarchy_trace.h"

#include <algorithm>

namespace accelera::simulator {

PreparedTrace::PreparedTrace(const Events& events, Span<int32_t> steps)
    : events_(events), steps_(steps), exists_before_(events.size_bytes.size, true) {
    survey();
    if (recorded_) match_releases();
}

/// One pass for the number of steps, the largest one, what exists beforehand, and whether pins are recorded.
void PreparedTrace::survey() {
    std::vector<int32_t> seen_in(events_.size_bytes.size, -1);
    int32_t current = -1;
    int64_t bytes_of_step = 0;
    for (size_t event = 0; event < size(); ++event) {
        recorded_ |= kind(event) == Kind::release;
        step_count_ = std::max(step_count_, step(event) + 1);
        if (!is_access(event)) continue;
        const Id id = buffer(event);
        int32_t& seen = seen_in[static_cast<size_t>(id)];
        if (step(event) != current) bytes_of_step = 0;
        current = step(event);
        if (seen == -1 && kind(event) == Kind::write) exists_before_[static_cast<size_t>(id)] = false;
        if (seen != current) bytes_of_step += bytes(id);
        seen = current;
        largest_step_bytes_ = std::max(largest_step_bytes_, bytes_of_step);
    }
}

/// Pins of a buffer are dropped in the order in which they were made.
void PreparedTrace::match_releases() {
    std::vector<std::vector<int32_t>> holders(events_.size_bytes.size);
    std::vector<size_t> dropped(events_.size_bytes.size, 0);
    released_step_.assign(size(), 0);
    completes_step_.assign(size(), false);
    size_t last = size();
    for (size_t event = 0; event < size(); ++event) {
        const auto id = static_cast<size_t>(buffer(event));
        if (is_access(event)) {
            if (last != size()) completes_step_[last] = step(event) != step(last);
            last = event;
            holders[id].push_back(step(event));
        } else if (kind(event) == Kind::free) {
            holders[id].clear();
            dropped[id] = 0;
        } else if (kind(event) == Kind::release && dropped[id] < holders[id].size()) {
            released_step_[event] = holders[id][dropped[id]++];
        }
    }
    if (last != size()) completes_step_[last] = true;
}

}  // namespace accelera::simulator
