#pragma once

#include <cstdint>
#include <vector>

namespace accelera::planner {

/// A block of the arena, and when it is there.
struct Block {
    int64_t nbytes;
    int32_t begins;
    int32_t ends;
};

/// Places of blocks, the largest first, each as low as possible; the top. Where that leaves holes beside
/// the most bytes that are live at once, large ones are placed in other orders too.
int64_t lay_out(const std::vector<Block>& blocks, int64_t live_bytes, std::vector<int64_t>& places);

}  // namespace accelera::planner
