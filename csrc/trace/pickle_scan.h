#pragma once

#include <cstdint>
#include <string_view>

namespace accelera::trace {

/// Scan the opcodes of a pickle without running them. Returns the position of the first one that would take
/// memory or time out of proportion to the file: a memo place beyond the number of opcodes so far, a length
/// beyond the end of the data, or a tuple of tuples that takes long to hash. Returns -1 for a pickle without
/// any, and for one with an unknown opcode, which the unpickler itself refuses.
int64_t find_oversized_opcode(std::string_view data);

}  // namespace accelera::trace
