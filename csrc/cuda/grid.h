#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace accelera::cuda {

constexpr int tile = 64;  // rows, and columns, of a tile of the result: one thread block computes it
constexpr int64_t most_blocks_x = INT32_MAX, most_blocks_y = 65535;  // that CUDA launches

/// A part of a result that one launch computes.
struct Launch {
    int64_t row, col, rows, cols;
    unsigned x, y;  // thread blocks along the rows and along the columns
};

/// The launches for a result of so many rows and columns: one, unless it has more tiles than CUDA launches.
inline std::vector<Launch> launches(int64_t rows, int64_t cols) {
    const auto blocks = [](int64_t length) { return static_cast<unsigned>((length + tile - 1) / tile); };
    std::vector<Launch> found;
    for (int64_t col = 0; col < cols; col += most_blocks_y * tile)
        for (int64_t row = 0; row < rows; row += most_blocks_x * tile) {
            const int64_t height = std::min(rows - row, most_blocks_x * tile);
            const int64_t width = std::min(cols - col, most_blocks_y * tile);
            found.push_back({row, col, height, width, blocks(height), blocks(width)});
        }
    return found;
}

}  // namespace accelera::cuda
