#pragma once

#include "tensora/cuda/kernels.h"
#include "tensora/jit/tile_body.h"

namespace accelera::tensora {

/// CUDA kernel of a tile: a block of threads for each row at a time. Nothing is stored between its passes
/// over a row: each pass, which ends with reductions or results, computes again what it needs, so that rows
/// may have any length. Its arguments are the rows and their length, extents and steps of the axes before,
/// inputs with the steps of their axes, outputs, and `tile_constants`.
cuda::Source tile_source(const TileBody& body, int leading_axes);

/// Elements of all constants of a body, one behind the other, as bytes.
std::vector<char> tile_constants(const TileBody& body);

}  // namespace accelera::tensora
