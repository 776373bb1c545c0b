#include "planner/step_overlap.h"

#include <algorithm>
#include <numeric>

namespace accelera::planner {

namespace {

/// Blocks that may be there longer than they have to.
class StretchableLayout {
  public:
    StretchableLayout(std::vector<Block>& blocks, StepSchedule& schedule)
        : blocks_(blocks), places_(schedule.places), top_(schedule.top_bytes), peak_(schedule.live_bytes) {
        int32_t last = 0;
        for (size_t i = 0; i < blocks.size(); ++i) {
            last = std::max(last, blocks[i].ends);
            placed_.emplace_back(places_[i], int32_t(i));
        }
        std::sort(placed_.begin(), placed_.end());
        live_.assign(at(last) + 1, 0);
        for (const Block& block : blocks) {
            live_[at(block.begins)] += block.nbytes;
            live_[at(block.ends)] -= block.nbytes;
        }
        std::partial_sum(live_.begin(), live_.end(), live_.begin());
    }

    /// Whether block `i` can be there from `begins` to `ends`, which include its own time; it is, then.
    bool stretch(int32_t i, int32_t begins, int32_t ends) {
        Block& block = blocks_[at(i)];
        if (!has_room(begins, block.begins, block.nbytes) || !has_room(block.ends, ends, block.nbytes))
            return false;
        const Block before = block;
        const std::pair<int64_t, int32_t> entry{places_[at(i)], i};
        placed_.erase(std::lower_bound(placed_.begin(), placed_.end(), entry));
        block.begins = begins;
        block.ends = ends;
        const int64_t place = place_of(i);
        if (place < 0)
            block = before;
        else
            places_[at(i)] = place;
        const std::pair<int64_t, int32_t> after{places_[at(i)], i};
        placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), after), after);
        if (place < 0) return false;
        add_live(begins, before.begins, block.nbytes);
        add_live(before.ends, ends, block.nbytes);
        return true;
    }

  private:
    void add_live(int32_t begins, int32_t ends, int64_t nbytes) {
        for (int32_t tick = begins; tick < ends; ++tick) live_[at(tick)] += nbytes;
    }

    bool has_room(int32_t begins, int32_t ends, int64_t nbytes) const {
        for (int32_t tick = begins; tick < ends; ++tick)
            if (live_[at(tick)] + nbytes > peak_) return false;
        return true;
    }

    /// Its own place if it can, or another one; -1 if there is none below the top. A block at the top stays,
    /// so that the top does.
    int64_t place_of(int32_t i) const {
        const Block& block = blocks_[at(i)];
        const int64_t own = places_[at(i)];
        const bool stays = std::none_of(placed_.begin(), placed_.end(), [&](const auto& other) {
            const Block& one = blocks_[at(other.second)];
            return other.first < own + block.nbytes && own < other.first + one.nbytes && one.meets(block);
        });
        if (stays) return own;
        if (own + block.nbytes == top_) return -1;
        const int64_t place = lowest_place(block, blocks_, placed_);
        return place + block.nbytes <= top_ ? place : -1;
    }

    std::vector<Block>& blocks_;
    std::vector<int64_t>& places_;
    const int64_t top_, peak_;
    PlacedBlocks placed_;
    std::vector<int64_t> live_;  ///< bytes by tick
};

/// Decides how far transfers reach into the operations beside them.
class Overlap {
  public:
    Overlap(const Timeline& timeline, double seconds_per_byte, std::vector<Block>& blocks,
            StepSchedule& schedule)
        : timeline_(timeline),
          seconds_per_byte_(seconds_per_byte),
          blocks_(blocks),
          schedule_(schedule),
          layout_(blocks, schedule) {}

    void run() {
        const std::vector<Transfer>& transfers = timeline_.transfers;
        ends_.resize(transfers.size());
        begins_.resize(transfers.size());
        std::vector<int32_t> order(transfers.size());
        std::iota(order.begin(), order.end(), 0);
        double channel = 0;
        for (const int32_t i : order) channel = stretch_out(i, channel);
        std::sort(order.begin(), order.end(),
                  [&](int32_t a, int32_t b) { return transfers[at(a)].in > transfers[at(b)].in; });
        channel = timeline_.starts.back().seconds;
        for (const int32_t i : order) channel = stretch_in(i, channel);
        rewrite_actions();
        reorder_places();
    }

  private:
    double seconds_of(const Transfer& transfer) const {
        return seconds_per_byte_ * double(blocks_[at(transfer.block)].nbytes);
    }
    int32_t operation_of(int32_t action) const { return schedule_.actions[at(action)].operation; }

    /// The furthest operation from `near`, which is known to do, towards `far` that `fits`.
    template <typename Fits>
    static int32_t furthest(int32_t near, int32_t far, Fits fits) {
        const int32_t step = far < near ? -1 : 1;
        int32_t done = 0, open = (far - near) * step;
        while (done < open) {
            const int32_t middle = (done + open + 1) / 2;
            if (fits(near + step * middle))
                done = middle;
            else
                open = middle - 1;
        }
        return near + step * done;
    }

    /// The block stays until the file has the contents, if it may: until just before some operation. The
    /// channel is free again at the time returned.
    double stretch_out(int32_t i, double channel) {
        const Transfer& transfer = timeline_.transfers[at(i)];
        const int32_t near = operation_of(transfer.out) + 1, last = int32_t(timeline_.before.size()) - 1;
        ends_[at(i)] = near;
        if (near > last) return channel;
        const double done = std::max(channel, timeline_.before[at(near)].seconds) + seconds_of(transfer);
        int32_t far = near;
        const int32_t most = transfer.in < 0 ? last : operation_of(transfer.in);
        while (far < most && timeline_.before[at(far)].seconds < done) ++far;
        const int32_t begins = blocks_[at(transfer.block)].begins;
        ends_[at(i)] = furthest(near, far, [&](int32_t operation) {
            return layout_.stretch(transfer.block, begins, timeline_.before[at(operation)].tick);
        });
        return std::min(done, timeline_.before[at(ends_[at(i)])].seconds);
    }

    /// The block is there as soon as the channel has to begin, if it may: just before some operation. Returns
    /// when the channel begins.
    double stretch_in(int32_t i, double channel) {
        const Transfer& transfer = timeline_.transfers[at(i)];
        if (transfer.in < 0) return channel;
        const int32_t near = operation_of(transfer.in);
        const int32_t least = std::max(ends_[at(i)], operation_of(transfer.out) + 1);
        const double begin = std::min(channel, timeline_.before[at(near)].seconds) - seconds_of(transfer);
        int32_t far = near;
        while (far > least && timeline_.starts[at(far)].seconds > begin) --far;
        const int32_t ends = blocks_[at(transfer.block_again)].ends;
        begins_[at(i)] = furthest(near, far, [&](int32_t operation) {
            return layout_.stretch(transfer.block_again, timeline_.starts[at(operation)].tick, ends);
        });
        return std::max(begin, timeline_.starts[at(begins_[at(i)])].seconds);
    }

    /// A transfer that got time becomes two actions.
    void rewrite_actions() {
        std::vector<Timed> all;
        for (size_t a = 0; a < schedule_.actions.size(); ++a)
            all.push_back({timeline_.ticks[a], schedule_.actions[a]});
        std::vector<Timed> more;
        for (size_t i = 0; i < timeline_.transfers.size(); ++i) {
            const Transfer& transfer = timeline_.transfers[i];
            PlannedAction& out = all[at(transfer.out)].action;
            if (ends_[i] > out.operation + 1) {
                out.kind = PlannedAction::out_begin;
                more.push_back({timeline_.before[at(ends_[i])].tick,
                                {ends_[i], 0, PlannedAction::out_end, transfer.value}});
            }
            if (transfer.in < 0) continue;
            PlannedAction& in = all[at(transfer.in)].action;
            if (begins_[i] < in.operation) {
                in.kind = PlannedAction::in_end;
                more.push_back({timeline_.starts[at(begins_[i])].tick,
                                {begins_[i], 0, PlannedAction::in_begin, transfer.value},
                                transfer.in});
            }
        }
        std::sort(more.begin(), more.end(), [](const Timed& a, const Timed& b) {
            return a.tick != b.tick ? a.tick < b.tick : a.order < b.order;
        });
        merge(all, more);
    }

    struct Timed {
        int32_t tick;
        PlannedAction action;
        int32_t order = 0;  ///< of those that begin at one tick: blocks begin in the order of their numbers
    };

    void merge(const std::vector<Timed>& all, const std::vector<Timed>& more) {
        schedule_.actions.clear();
        auto next = more.begin();
        for (const Timed& one : all) {
            for (; next != more.end() && next->tick < one.tick; ++next)
                schedule_.actions.push_back(next->action);
            schedule_.actions.push_back(one.action);
        }
        for (; next != more.end(); ++next) schedule_.actions.push_back(next->action);
    }

    /// Places are those of blocks in the order in which they are taken.
    void reorder_places() {
        std::vector<int32_t> order(blocks_.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return blocks_[at(a)].begins < blocks_[at(b)].begins; });
        std::vector<int64_t> places;
        for (const int32_t i : order) places.push_back(schedule_.places[at(i)]);
        schedule_.places = std::move(places);
    }

    const Timeline& timeline_;
    const double seconds_per_byte_;
    std::vector<Block>& blocks_;
    StepSchedule& schedule_;
    StretchableLayout layout_;
    std::vector<int32_t> ends_, begins_;  ///< operations, by transfer
};

}  // namespace

void overlap_transfers(const Timeline& timeline, double seconds_per_byte, std::vector<Block>& blocks,
                       StepSchedule& schedule) {
    if (!timeline.transfers.empty()) Overlap(timeline, seconds_per_byte, blocks, schedule).run();
}

}  // namespace accelera::planner
