#pragma once

#include <cstdint>

/// Random numbers of the tests (SplitMix64): the same on every machine.
class RandomNumbers {
  public:
    explicit RandomNumbers(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t mixed = (state_ += 0x9E3779B97F4A7C15);
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
        return mixed ^ (mixed >> 31);
    }
    /// A number from `first` to `last`, both included.
    int64_t between(int64_t first, int64_t last) {
        return first + int64_t(next() % uint64_t(last - first + 1));
    }
    bool chance(int64_t one_in) { return between(1, one_in) == 1; }

  private:
    uint64_t state_;
};
