#pragma once

#include <cstdint>

#include "cpu/tile_blocks.h"
#include "cpu/tile_io.h"

namespace accelera::io {

/// The calling thread's staging buffer, page-aligned, `staging_bytes` long.
char* staging();

/// Whether these bytes of a file are in the page cache.
bool cached(int file, int64_t offset, int64_t bytes);

/// Move one block through the page cache.
Outcome read_block(int file, const Geometry& geometry, const Block& block);
Outcome write_block(int file, const Geometry& geometry, const Block& block);

/// Move one run of bytes through the page cache.
Outcome read_run(int file, char* memory, int64_t bytes, int64_t offset);
Outcome write_run(int file, const char* memory, int64_t bytes, int64_t offset);

/// Copy a block out of a staged image of its span of the file.
void scatter(const Geometry& geometry, const Block& block, const char* staged);

}  // namespace accelera::io
