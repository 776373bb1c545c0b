#include "simulator/hierarchy/prepared_trace.h"

#include <algorithm>

namespace accelera::simulator {

PreparedTrace::PreparedTrace(const Events& events, Span<int32_t> steps)
    : events_(events), steps_(steps), exists_before_(events.size_bytes.size, true) {
    survey();
    if (recorded_) find_last_accesses();
}

/// One pass for the number of steps, the largest one, what exists beforehand, and whether pins are recorded.
void PreparedTrace::survey() {
    std::vector<int32_t> seen_in(events_.size_bytes.size, -1);
    int32_t current = -1;
    int64_t bytes_of_step = 0;
    for (size_t event = 0; event < size(); ++event) {
        recorded_ |= kind(event) == Kind::release;
        step_count_ = std::max(step_count_, step(event) + 1);
        departures_ |= !is_access(event);
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

void PreparedTrace::find_last_accesses() {
    completes_step_.assign(size(), false);
    size_t last = size();
    for (size_t event = 0; event < size(); ++event) {
        if (!is_access(event)) continue;
        if (last != size()) completes_step_[last] = step(event) != step(last);
        last = event;
    }
    if (last != size()) completes_step_[last] = true;
}

}  // namespace accelera::simulator
