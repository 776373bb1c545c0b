#pragma once

#include <vector>

#include "simulator/cache.h"

namespace accelera::simulator {

/// A trace with what every replay of it needs, found once.
class PreparedTrace {
  public:
    PreparedTrace(const Events& events, Span<int32_t> steps);

    size_t size() const { return events_.buffer.size; }
    Id buffers() const { return static_cast<Id>(events_.size_bytes.size); }
    int32_t steps() const { return step_count_; }

    Id buffer(size_t event) const { return events_.buffer[event]; }
    Kind kind(size_t event) const {
        return events_.kinds.empty() ? Kind::read : static_cast<Kind>(events_.kinds[event]);
    }
    bool is_access(size_t event) const { return kind(event) <= Kind::write; }
    int32_t step(size_t event) const { return steps_.empty() ? static_cast<int32_t>(event) : steps_[event]; }
    int64_t bytes(Id id) const { return events_.size_bytes[static_cast<size_t>(id)]; }

    /// Whether pins end where the trace says so, by a release, rather than with their steps.
    bool recorded() const { return recorded_; }
    /// Whether there is anything but accesses.
    bool departures() const { return departures_; }
    /// Whether `event` is the last access of its step.
    bool completes_step(size_t event) const { return completes_step_[event]; }

    /// Whether the buffer lies in the lowest tier from the start: the first thing done to it is no write.
    bool exists_before(Id id) const { return exists_before_[static_cast<size_t>(id)]; }
    /// Bytes of the operands of the step that has the most.
    int64_t largest_step_bytes() const { return largest_step_bytes_; }

  private:
    void survey();
    void find_last_accesses();

    Events events_;
    Span<int32_t> steps_;
    int32_t step_count_ = 0;
    bool recorded_ = false;
    bool departures_ = false;
    std::vector<bool> completes_step_;
    std::vector<bool> exists_before_;
    int64_t largest_step_bytes_ = 0;
};

}  // namespace accelera::simulator
