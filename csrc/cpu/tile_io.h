#pragma once

#include <cstdint>
#include <vector>

namespace accelera::io {

/// One axis of a region: its length, and the distance in bytes between neighbours on either side.
struct Axis {
    int64_t count, file_stride, memory_stride;
};

/// A region of an array in a flat file, and the memory that goes with it.
struct Region {
    int file;          ///< descriptor that goes through the page cache
    int direct_file;   ///< descriptor of the same file opened with O_DIRECT, or -1
    int64_t offset;    ///< file position of the first element
    char* memory;      ///< address of the first element
    int64_t itemsize;  ///< bytes per element
    std::vector<Axis> axes;
    bool prefer_cached;  ///< with a direct descriptor: still read from the page cache what is there
};

/// What stopped a transfer: an errno (0: the file ended) at a file position.
struct Outcome {
    bool done = true;
    int error = 0;
    int64_t offset = 0, wanted = 0, got = 0;
};

/// The most memory one thread holds to gather and scatter small pieces, kept until the thread ends.
inline constexpr int64_t staging_bytes = 2 << 20;

Outcome read_region(const Region& region);
Outcome write_region(const Region& region);

}  // namespace accelera::io
