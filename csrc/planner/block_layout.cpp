#include "planner/block_layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace accelera::planner {

namespace {

/// Places of blocks in the arena, each as low as possible, in some order.
class Layout {
  public:
    explicit Layout(const std::vector<Block>& blocks) : blocks_(blocks), places_(blocks.size(), -1) {
        for (const Block& block : blocks) clock_ = std::max<int64_t>(clock_, block.ends + 1);
    }

    /// Places the first `count` blocks of an order, until they reach a limit.
    void place(const std::vector<int32_t>& order, size_t count, int64_t limit) {
        placed_.clear();
        std::fill(places_.begin(), places_.end(), -1);
        top_ = 0;
        for (size_t i = 0; i < count && top_ < limit; ++i) add_one(order[i]);
    }

    int64_t end(int32_t i) const { return places_[at(i)] + blocks_[at(i)].nbytes; }
    int64_t top() const { return top_; }
    std::vector<int64_t> places() const { return places_; }

  private:
    struct Placed {
        int64_t place, end;
        int32_t begins, ends;
        uint64_t times;
    };

    /// The sixty-fourths of the step in which a block is there.
    uint64_t times_of(const Block& block) const {
        const auto part = [&](int64_t time) { return uint64_t(time * 64 / clock_); };
        return ~uint64_t(0) << part(block.begins) & ~uint64_t(0) >> (63 - part(block.ends));
    }

    void add_one(int32_t i) {
        const Block& block = blocks_[at(i)];
        Placed entry{0, 0, block.begins, block.ends, times_of(block)};
        for (const Placed& other : placed_) {
            if (!(entry.times & other.times)) continue;
            if (other.ends <= entry.begins || entry.ends <= other.begins) continue;
            if (other.place >= entry.place + block.nbytes) break;
            entry.place = std::max(entry.place, other.end);
        }
        entry.end = entry.place + block.nbytes;
        const auto by_place = [](const Placed& a, const Placed& b) { return a.place < b.place; };
        placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), entry, by_place), entry);
        places_[at(i)] = entry.place;
        top_ = std::max(top_, entry.end);
    }

    const std::vector<Block>& blocks_;
    std::vector<int64_t> places_;
    std::vector<Placed> placed_;  ///< by place
    int64_t clock_ = 1, top_ = 0;
};

/// Blocks that reach above a limit come earlier in an order: half as many are before them.
std::vector<int32_t> raised(const std::vector<int32_t>& order, size_t count, const Layout& layout,
                            int64_t limit) {
    std::vector<std::pair<size_t, int32_t>> ranks;
    for (size_t i = 0; i < order.size(); ++i)
        ranks.emplace_back(i < count && layout.end(order[i]) > limit ? i : 2 * i + 1, order[i]);
    std::stable_sort(ranks.begin(), ranks.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<int32_t> result;
    for (const auto& rank : ranks) result.push_back(rank.second);
    return result;
}

/// Layouts tried beside that of the largest first, at least; more of them with few blocks.
constexpr size_t other_orders = 8, placed_in_all = 8000;
constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

}  // namespace

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

int64_t lay_out(const std::vector<Block>& blocks, int64_t live_bytes, std::vector<int64_t>& places) {
    std::vector<int32_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return blocks[at(a)].nbytes > blocks[at(b)].nbytes; });
    const auto small = [&](int32_t i) { return blocks[at(i)].nbytes < live_bytes / 4096; };
    const auto large = size_t(std::find_if(order.begin(), order.end(), small) - order.begin());
    Layout layout(blocks);
    layout.place(order, large, no_limit);
    const int64_t enough = live_bytes + live_bytes / 1000;
    std::vector<int32_t> best_order = order;
    int64_t top = layout.top();
    const size_t orders = std::clamp<size_t>(placed_in_all / (large + 1), other_orders, 8 * other_orders);
    for (size_t i = 0; i < orders && top > enough; ++i) {
        order = raised(order, large, layout, live_bytes);
        layout.place(order, large, top);
        if (layout.top() >= top) continue;
        top = layout.top();
        best_order = order;
    }
    layout.place(best_order, blocks.size(), no_limit);
    places = layout.places();
    return layout.top();
}

}  // namespace accelera::planner
