#pragma once

#include <vector>

#include "policy/contract.h"

namespace accelera::policy {

/// A random resident, by dice that the seed decides (SplitMix64, Steele et al., OOPSLA 2014).
///
/// 1. Resident buffers stand in an array, in no order.
/// 2. The victim is the one at a random place, or the next evictable one after it, around the array.
class Random : public Policy {
  public:
    explicit Random(const Knowledge& known) : state_(known.seed), place_(known.buffers) {}

    void insert(Id id, int64_t, Time, bool) {
        place_[id] = resident_.size();
        resident_.push_back(id);
    }
    void touch(Id, Time, bool) {}
    void evict(Id id) { remove(id); }
    void remove(Id id) {
        const Id last = resident_.back();
        resident_[place_[id]] = last;
        place_[last] = place_[id];
        resident_.pop_back();
    }

    template <class Evictable>
    Id victim(Evictable&& evictable) {
        if (resident_.empty()) return none;
        size_t place = next() % resident_.size();
        for (size_t tried = 0; tried < resident_.size(); ++tried) {
            if (evictable(resident_[place])) return resident_[place];
            if (++place == resident_.size()) place = 0;
        }
        return none;
    }

  private:
    uint64_t next() {
        uint64_t mixed = (state_ += 0x9E3779B97F4A7C15);
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
        return mixed ^ (mixed >> 31);
    }

    uint64_t state_;
    ById<size_t> place_;
    std::vector<Id> resident_;
};

}  // namespace accelera::policy
