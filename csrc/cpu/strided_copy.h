#pragma once

#include <cstdint>
#include <vector>

namespace accelera::io {

/// One axis of a copy: its length and the distance in bytes between neighbours on either side.
struct CopyAxis {
    int64_t count, target_stride, source_stride;
};

/// Copy elements of `itemsize` bytes between two strided places that do not overlap.
void strided_copy(char* target, const char* source, std::vector<CopyAxis> axes, int64_t itemsize);

}  // namespace accelera::io
