#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accelera::trace {

/// Stack and memo of an unpickler, with the weight of each value in its place.
///
/// The weight is the number of values that a hash of the value visits: tuples and frozen sets count their
/// items, however often they share one. A tuple of two references to a tuple of two references and so on
/// takes a few bytes per level, and its hash as a key of a dict, which nothing can interrupt, takes 2^levels.
class PickleStack {
  public:
    /// Apply the opcode `code`, whose argument is the memo place `place` if it has one;
    /// the caller checks that it is at most the number of opcodes so far. Returns false where a
    /// value would exceed the largest weight, or the stack has too few values, which no pickler writes.
    bool apply(uint8_t code, uint64_t place);

  private:
    bool push(uint64_t weight);
    bool pop(size_t count);
    bool pop_to_mark();
    bool replace(size_t count, uint64_t weight);
    bool combine(size_t count);
    bool combine_to_mark();
    bool pop_value_or_mark();
    bool remember(uint64_t place);
    bool recall(uint64_t place);

    std::vector<uint16_t> values_;
    std::vector<size_t> marks_;
    std::vector<uint16_t> memo_;  ///< weights by place; 0 where nothing is
    uint64_t memo_count_ = 0;
};

}  // namespace accelera::trace
