#pragma once

#include <algorithm>
#include <vector>

#include "simulator/hierarchy/prepared_trace.h"

namespace accelera::simulator {

/// The lowest tier, where every buffer has its place.
class Home {
  public:
    explicit Home(const PreparedTrace& trace) : trace_(trace), places_(static_cast<size_t>(trace.buffers())) {
        for (Id id = 0; id < trace.buffers(); ++id)
            if (trace.exists_before(id)) store(id);
    }

    void store(Id id) {
        Place& place = places_[static_cast<size_t>(id)];
        if (!place.taken) occupied_bytes_ += trace_.bytes(id);
        peak_bytes_ = std::max(peak_bytes_, occupied_bytes_);
        place = {true, true};
    }
    /// The contents here are outdated.
    void invalidate(Id id) { places_[static_cast<size_t>(id)].current = false; }
    void free(Id id) {
        Place& place = places_[static_cast<size_t>(id)];
        if (place.taken) occupied_bytes_ -= trace_.bytes(id);
        place = {};
    }
    bool is_current(Id id) const { return places_[static_cast<size_t>(id)].current; }
    int64_t peak_bytes() const { return peak_bytes_; }

  private:
    struct Place {
        bool taken = false;
        bool current = false;
    };

    const PreparedTrace& trace_;
    std::vector<Place> places_;
    int64_t occupied_bytes_ = 0;
    int64_t peak_bytes_ = 0;
};

}  // namespace accelera::simulator
