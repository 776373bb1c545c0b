#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/block_layout.h"
#include "planner/step_overlap.h"
#include "planner/step_plan.h"

namespace accelera::planner {

/// Seconds of what cannot be.
constexpr double impossible = std::numeric_limits<double>::infinity();
/// An operation after all of a step's.
constexpr int32_t never = std::numeric_limits<int32_t>::max();

/// Replays a step under fates of its gaps.
class StepReplay {
  public:
    StepReplay(const StepGraph& graph, const StepPrices& prices, const std::vector<Gap>& gaps);

    /// Added seconds; `impossible` where a value cannot be made again.
    double run(const std::vector<GapFate>& fates, StepSchedule* schedule = nullptr);
    /// Transfers of the schedule that was just made, while operations run.
    void overlap(StepSchedule& schedule);
    /// The same, and the fates are what later ones are compared with.
    double run_base(const std::vector<GapFate>& fates);
    /// The same for fates that differ from the base's in one gap: only as far as that changes anything.
    double run_changed(const std::vector<GapFate>& fates, int32_t gap,
                       int64_t most_bytes = std::numeric_limits<int64_t>::max());

    int64_t peak() const { return peak_; }
    int32_t peak_at() const { return peak_at_; }
    /// Tops of the arena under fates.
    int64_t top(const std::vector<GapFate>& fates);
    /// Whether a value may have a fate.
    bool allows(int32_t value, GapFate fate) const {
        if (fate == GapFate::pack)
            return graph_.packed_bytes[at(value)] > 0 &&
                   block_bytes_of(graph_.packed_bytes[at(value)]) < bytes_[at(value)];
        const bool again = fate == GapFate::recompute || fate == GapFate::recompute_lazy;
        return !again || producer_[at(value)] >= 0;
    }

  private:
    enum class State : uint8_t { unborn, present, dropped, dropped_lazy, filed, packed, dead };
    struct Peak {
        int64_t nbytes = 0;
        int32_t at = 0;
    };
    /// A step between two operations, with the peaks of what lies before and behind.
    struct Snapshot {
        std::vector<State> state;
        int64_t live = 0;
        double seconds = 0;
        Peak before, after;
    };
    /// Operations from snapshot to snapshot: few enough to replay, and so many that the snapshots of a long
    /// step, each with the state of all values, take no more than 4 MiB.
    int32_t stride_ = 16;
    bool run_one(int32_t t);
    void go_back(const Snapshot& snapshot);
    void rise_to(Peak peak);
    void begin(const std::vector<GapFate>& fates, StepSchedule* schedule);
    void act(bool after, PlannedAction::Kind kind, int32_t subject);
    void mark(std::vector<Moment>& moments);
    void rise(int64_t nbytes);
    int32_t add_block(int64_t nbytes);
    void enter(int32_t v);
    void leave(int32_t v);
    /// The workspace of an operation, while `body` enters what it makes.
    template <typename Body>
    void with_workspace(int32_t t, Body body) {
        const int64_t nbytes = graph_.workspace[at(t)] ? block_bytes_of(graph_.workspace[at(t)]) : 0;
        int32_t block = -1;
        if (nbytes) {
            rise(nbytes);
            if (schedule_) block = add_block(nbytes);
        }
        body();
        live_ -= nbytes;
        if (block >= 0) blocks_[at(block)].ends = clock_++;
    }
    void run_operation(int32_t t);
    void evict(int32_t g);
    static bool is_away(State state) { return State::dropped <= state && state <= State::packed; }
    /// Whether contents are elsewhere, and come back from there.
    bool is_stored(int32_t v) const {
        return state_[at(v)] == State::filed || state_[at(v)] == State::packed;
    }
    bool restore_operands(int32_t t);
    void fetch(int32_t v);
    void pack(int32_t v);
    void unpack(int32_t v);
    /// The packed form of a value ends.
    void leave_packed(int32_t v);
    /// A value comes back from where its contents are.
    bool bring_back(int32_t v);
    bool recompute(int32_t value);

    /// Operations that have to run so that a value is there.
    bool collect(int32_t value);
    bool stays(int32_t v, int32_t value) const;
    void run_again(int32_t k, int32_t value);
    bool made_again(int32_t v) const;

    /// It goes back to what it was before it was made for another's sake.
    void drop_again(int32_t v);
    void finish();

    const StepGraph& graph_;
    const StepPrices& prices_;
    const std::vector<Gap>& gaps_;
    const int32_t n_;
    std::vector<uint8_t> low_;
    std::vector<int64_t> bytes_;
    std::vector<int32_t> producer_, valid_until_;
    Lists frees_, starts_;  ///< values that end with an operation, gaps that begin after it
    Lists away_;            ///< operands that may be away
    std::vector<State> state_;
    std::vector<State> again_ = std::vector<State>(state_.size(), State::present);
    std::vector<uint8_t> stays_ = std::vector<uint8_t>(state_.size());
    std::vector<int64_t> needed_, visited_, in_run_;
    std::vector<int32_t> block_, packed_block_;
    std::vector<int32_t> uses_, run_, left_, stored_, kept_, twice_;
    std::vector<Block> blocks_;
    Timeline timeline_;
    std::vector<int32_t> transfer_of_;
    std::vector<Snapshot> snapshots_;
    double base_seconds_ = 0;
    const std::vector<GapFate>* fates_ = nullptr;
    StepSchedule* schedule_ = nullptr;
    double seconds_ = 0, ran_seconds_ = 0;
    int64_t live_ = 0, peak_ = 0, twice_bytes_ = 0, mark_ = 0, need_ = 0;
    int32_t now_ = 0, peak_at_ = 0, clock_ = 0;
};

}  // namespace accelera::planner
