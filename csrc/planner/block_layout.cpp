#include "planner/block_layout.h"

#include <algorithm>
#include <numeric>

namespace accelera::planner {

int64_t lowest_place(const Block& block, const std::vector<Block>& blocks, const PlacedBlocks& placed) {
    int64_t place = 0;
    for (const auto& [other_place, k] : placed) {
        const Block& other = blocks[at(k)];
        if (!other.meets(block)) continue;
        if (other_place >= place + block.nbytes) break;
        place = std::max(place, other_place + other.nbytes);
    }
    return place;
}

int64_t lay_out(const std::vector<Block>& blocks, std::vector<int64_t>& places) {
    std::vector<int32_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return blocks[at(a)].nbytes > blocks[at(b)].nbytes; });
    places.assign(blocks.size(), -1);
    PlacedBlocks placed;
    int64_t top = 0;
    for (const int32_t i : order) {
        const int64_t place = lowest_place(blocks[at(i)], blocks, placed);
        places[at(i)] = place;
        const std::pair<int64_t, int32_t> entry{place, i};
        placed.insert(std::upper_bound(placed.begin(), placed.end(), entry), entry);
        top = std::max(top, place + blocks[at(i)].nbytes);
    }
    return top;
}

}  // namespace accelera::planner
