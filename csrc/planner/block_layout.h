#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace accelera::planner {

constexpr size_t at(int64_t index) { return static_cast<size_t>(index); }

/// Bytes of a block in the arena.
constexpr int64_t block_bytes_of(int64_t nbytes) { return (nbytes < 1 ? 64 : nbytes + 63) / 64 * 64; }

/// A block of the arena, and when it is there.
struct Block {
    int64_t nbytes;
    int32_t begins;
    int32_t ends;

    bool meets(const Block& other) const { return begins < other.ends && other.begins < ends; }
};

/// Blocks whose places are known, by place.
using PlacedBlocks = std::vector<std::pair<int64_t, int32_t>>;

/// The lowest place that a block can have beside others.
int64_t lowest_place(const Block& block, const std::vector<Block>& blocks, const PlacedBlocks& placed);

/// Places of blocks, the largest first, each as low as possible; the top of all. Where that leaves holes
/// beside the most bytes that are live at once, large ones are placed in other orders too.
int64_t lay_out(const std::vector<Block>& blocks, int64_t live_bytes, std::vector<int64_t>& places);

}  // namespace accelera::planner
