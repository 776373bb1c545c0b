#include "planner/step_replay.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace accelera::planner {

namespace {

/// Rows of pairs (row, item), which keep their order.
Lists lists_of(size_t rows, const std::vector<std::pair<int32_t, int32_t>>& pairs) {
    Lists lists{std::vector<int64_t>(rows + 1), std::vector<int32_t>(pairs.size())};
    for (const auto& [row, item] : pairs) ++lists.starts[at(row) + 1];
    std::partial_sum(lists.starts.begin(), lists.starts.end(), lists.starts.begin());
    std::vector<int64_t> next = lists.starts;
    for (const auto& [row, item] : pairs) lists.items[at(next[at(row)]++)] = item;
    return lists;
}

}  // namespace

StepReplay::StepReplay(const StepGraph& graph, const StepPrices& prices, const std::vector<Gap>& gaps)
    : graph_(graph),
      prices_(prices),
      gaps_(gaps),
      n_(int32_t(graph.seconds.size())),
      low_(graph.nbytes.size()),
      bytes_(graph.nbytes.size()),
      producer_(graph.nbytes.size(), -1),
      valid_until_(graph.seconds.size(), never),
      state_(graph.nbytes.size()),
      needed_(graph.nbytes.size()),
      visited_(graph.nbytes.size()),
      in_run_(graph.seconds.size()),
      block_(graph.nbytes.size()),
      packed_block_(graph.nbytes.size()),
      uses_(graph.nbytes.size(), -1),
      transfer_of_(graph.nbytes.size()) {
    constexpr int64_t snapshot_bytes = int64_t(4) << 20;
    const int64_t most = std::max<int64_t>(1, snapshot_bytes / std::max<int64_t>(1, int64_t(state_.size())));
    stride_ = int32_t(std::max<int64_t>(stride_, (n_ + most - 1) / most));
    std::vector<std::pair<int32_t, int32_t>> frees, starts, away;
    for (size_t v = 0; v < bytes_.size(); ++v) {
        bytes_[v] = block_bytes_of(graph.nbytes[v]);
        low_[v] = graph.born[v] >= 0 && graph.freed[v] != never;
        if (low_[v]) frees.emplace_back(std::clamp(graph.freed[v], graph.born[v], n_ - 1), int32_t(v));
    }
    std::vector<std::vector<int32_t>> writes(bytes_.size());
    for (int32_t t = 0; t < n_; ++t)
        for (auto v = graph.writes.begin(t); v != graph.writes.end(t); ++v) writes[at(*v)].push_back(t);
    for (int32_t t = 0; t < n_; ++t) {
        for (auto v = graph.births.begin(t); v != graph.births.end(t); ++v)
            if (graph.pure[at(t)] && writes[at(*v)].empty()) producer_[at(*v)] = t;
        for (auto v = graph.reads.begin(t); v != graph.reads.end(t); ++v)
            for (const int32_t w : writes[at(*v)])
                if (w > t) {
                    valid_until_[at(t)] = std::min(valid_until_[at(t)], w);
                    break;
                }
    }
    std::vector<uint8_t> leaves(bytes_.size());
    for (size_t g = 0; g < gaps.size(); ++g) {
        starts.emplace_back(gaps[g].after, int32_t(g));
        leaves[at(gaps[g].value)] = 1;
    }
    for (int32_t t = 0; t < n_; ++t)
        for (auto v = graph.reads.begin(t); v != graph.reads.end(t); ++v)
            if (leaves[at(*v)]) away.emplace_back(t, *v);
    frees_ = lists_of(at(n_), frees);
    starts_ = lists_of(at(n_), starts);
    away_ = lists_of(at(n_), away);
}

double StepReplay::run(const std::vector<GapFate>& fates, StepSchedule* schedule) {
    begin(fates, schedule);
    for (int32_t t = 0; t < n_; ++t)
        if (!run_one(t)) return impossible;
    if (schedule) finish();
    return seconds_;
}

bool StepReplay::run_one(int32_t t) {
    now_ = t;
    mark(timeline_.before);
    if (!restore_operands(t)) return false;
    mark(timeline_.starts);
    run_operation(t);
    for (auto v = frees_.begin(t); v != frees_.end(t); ++v) {
        if (state_[at(*v)] == State::present) leave(*v);
        if (state_[at(*v)] == State::packed) leave_packed(*v);
        state_[at(*v)] = State::dead;
    }
    for (auto g = starts_.begin(t); g != starts_.end(t); ++g) evict(*g);
    return true;
}

double StepReplay::run_base(const std::vector<GapFate>& fates) {
    begin(fates, nullptr);
    snapshots_.resize(at((n_ + stride_ - 1) / stride_));
    for (Snapshot& here : snapshots_) {
        const auto first = int32_t(&here - snapshots_.data()) * stride_;
        here.state = state_;
        here.live = live_;
        here.seconds = seconds_;
        here.before = {peak_, peak_at_};
        peak_ = 0;
        for (int32_t t = first; t < std::min(n_, first + stride_); ++t)
            if (!run_one(t)) return impossible;
        here.after = {peak_, peak_at_};
        rise_to(here.before);
    }
    for (size_t i = snapshots_.size() - 1; i-- > 0;)
        if (snapshots_[i + 1].after.nbytes > snapshots_[i].after.nbytes)
            snapshots_[i].after = snapshots_[i + 1].after;
    return base_seconds_ = seconds_;
}

void StepReplay::rise_to(Peak peak) {
    if (peak.nbytes > peak_ || (peak.nbytes == peak_ && peak.at < peak_at_)) {
        peak_ = peak.nbytes;
        peak_at_ = peak.at;
    }
}

double StepReplay::run_changed(const std::vector<GapFate>& fates, int32_t gap, int64_t most_bytes) {
    const int32_t first = gaps_[at(gap)].after / stride_ * stride_;
    fates_ = &fates;
    schedule_ = nullptr;
    go_back(snapshots_[at(first / stride_)]);
    for (int32_t t = first; t < n_; ++t) {
        const Snapshot& here = snapshots_[at(t / stride_)];
        const bool compared = t % stride_ == 0 && t > gaps_[at(gap)].before;
        if (compared && here.live == live_ && here.state == state_) {
            rise_to(here.after);
            return peak_ > most_bytes ? impossible : seconds_ + (base_seconds_ - here.seconds);
        }
        if (!run_one(t) || peak_ > most_bytes) return impossible;
    }
    return seconds_;
}

void StepReplay::go_back(const Snapshot& snapshot) {
    state_ = snapshot.state;
    live_ = snapshot.live;
    seconds_ = snapshot.seconds;
    peak_ = snapshot.before.nbytes;
    peak_at_ = snapshot.before.at;
}

int64_t StepReplay::top(const std::vector<GapFate>& fates) {
    StepSchedule schedule;
    return run(fates, &schedule) == impossible ? -1 : schedule.top_bytes;
}

void StepReplay::begin(const std::vector<GapFate>& fates, StepSchedule* schedule) {
    fates_ = &fates;
    schedule_ = schedule;
    std::fill(state_.begin(), state_.end(), State::unborn);
    std::fill(again_.begin(), again_.end(), State::present);
    seconds_ = ran_seconds_ = 0;
    timeline_ = {};
    live_ = peak_ = 0;
    peak_at_ = 0;
    clock_ = 0;
    blocks_.clear();
}

void StepReplay::act(bool after, PlannedAction::Kind kind, int32_t subject) {
    if (!schedule_) return;
    schedule_->actions.push_back({now_, after, kind, subject});
    timeline_.ticks.push_back(clock_++);
}

void StepReplay::mark(std::vector<Moment>& moments) {
    if (schedule_) moments.push_back({clock_++, ran_seconds_});
}

void StepReplay::rise(int64_t nbytes) {
    live_ += nbytes;
    if (live_ > peak_) {
        peak_ = live_;
        peak_at_ = now_;
    }
}

int32_t StepReplay::add_block(int64_t nbytes) {
    blocks_.push_back({nbytes, clock_++, never});
    return int32_t(blocks_.size()) - 1;
}

void StepReplay::enter(int32_t v) {
    rise(bytes_[at(v)]);
    if (schedule_) block_[at(v)] = add_block(bytes_[at(v)]);
    state_[at(v)] = State::present;
}

void StepReplay::leave(int32_t v) {
    live_ -= bytes_[at(v)];
    if (schedule_) blocks_[at(block_[at(v)])].ends = clock_++;
}

void StepReplay::run_operation(int32_t t) {
    ran_seconds_ += graph_.seconds[at(t)];
    with_workspace(t, [&] {
        for (auto v = graph_.births.begin(t); v != graph_.births.end(t); ++v)
            if (low_[at(*v)])
                enter(*v);
            else
                state_[at(*v)] = State::present;
    });
}

void StepReplay::evict(int32_t g) {
    const Gap& gap = gaps_[at(g)];
    const GapFate fate = (*fates_)[at(g)];
    if (fate == GapFate::keep || state_[at(gap.value)] != State::present) return;
    if (fate == GapFate::pack) return pack(gap.value);
    const bool filed = fate == GapFate::offload;
    act(true, filed ? PlannedAction::out : PlannedAction::drop, gap.value);
    if (filed && schedule_) {
        transfer_of_[at(gap.value)] = int32_t(timeline_.transfers.size());
        const auto action = int32_t(schedule_->actions.size()) - 1;
        timeline_.transfers.push_back({gap.value, action, -1, block_[at(gap.value)], -1});
    }
    if (filed) seconds_ += prices_.spill_s_per_byte * double(bytes_[at(gap.value)]);
    leave(gap.value);
    state_[at(gap.value)] = filed                        ? State::filed
                            : fate == GapFate::recompute ? State::dropped
                                                         : State::dropped_lazy;
}

bool StepReplay::restore_operands(int32_t t) {
    const auto away = [&](int32_t v) { return is_away(state_[at(v)]); };
    if (std::none_of(away_.begin(t), away_.end(t), away)) return true;
    ++need_;
    for (auto v = away_.begin(t); v != away_.end(t); ++v) needed_[at(*v)] = need_;
    return std::all_of(away_.begin(t), away_.end(t), [&](int32_t v) { return bring_back(v); });
}

bool StepReplay::bring_back(int32_t v) {
    if (state_[at(v)] == State::dropped || state_[at(v)] == State::dropped_lazy) return recompute(v);
    if (state_[at(v)] == State::filed) fetch(v);
    if (state_[at(v)] == State::packed) unpack(v);
    return true;
}

void StepReplay::fetch(int32_t v) {
    act(false, PlannedAction::in, v);
    enter(v);
    if (!schedule_) return;
    Transfer& transfer = timeline_.transfers[at(transfer_of_[at(v)])];
    transfer.in = int32_t(schedule_->actions.size()) - 1;
    transfer.block_again = block_[at(v)];
}

void StepReplay::pack(int32_t v) {
    act(true, PlannedAction::pack, v);
    seconds_ += graph_.pack_seconds[at(v)];
    const int64_t nbytes = block_bytes_of(graph_.packed_bytes[at(v)]);
    rise(nbytes);
    if (schedule_) packed_block_[at(v)] = add_block(nbytes);
    leave(v);
    state_[at(v)] = State::packed;
}

void StepReplay::unpack(int32_t v) {
    act(false, PlannedAction::unpack, v);
    enter(v);
    leave_packed(v);
}

void StepReplay::leave_packed(int32_t v) {
    live_ -= block_bytes_of(graph_.packed_bytes[at(v)]);
    if (schedule_) blocks_[at(packed_block_[at(v)])].ends = clock_++;
}

bool StepReplay::recompute(int32_t value) {
    if (!collect(value)) return false;
    std::sort(run_.begin(), run_.end());
    // How often each result is read by what runs again.
    for (const int32_t k : run_)
        for (auto v = graph_.births.begin(k); v != graph_.births.end(k); ++v) uses_[at(*v)] = 0;
    for (const int32_t k : run_)
        for (auto v = graph_.reads.begin(k); v != graph_.reads.end(k); ++v)
            if (uses_[at(*v)] >= 0) ++uses_[at(*v)];
    for (const int32_t k : run_) run_again(k, value);
    for (const int32_t k : run_)
        for (auto v = graph_.births.begin(k); v != graph_.births.end(k); ++v) uses_[at(*v)] = -1;
    return true;
}

bool StepReplay::collect(int32_t value) {
    run_.clear();
    left_.assign(1, value);
    ++mark_;
    while (!left_.empty()) {
        const int32_t wanted = left_.back();
        left_.pop_back();
        const int32_t k = producer_[at(wanted)];
        if (k < 0 || valid_until_[at(k)] < now_) return false;
        if (in_run_[at(k)] == mark_) continue;
        in_run_[at(k)] = mark_;
        run_.push_back(k);
        for (auto v = graph_.reads.begin(k); v != graph_.reads.end(k); ++v) {
            if (visited_[at(*v)] == mark_) continue;
            visited_[at(*v)] = mark_;
            if (!low_[at(*v)]) {
                // Of a value that outlives the step the contents are those at its last write.
                continue;
            }
            if (state_[at(*v)] == State::present) continue;
            (is_stored(*v) ? stored_ : left_).push_back(*v);
        }
    }
    for (const int32_t v : stored_) bring_back(v);
    stored_.clear();
    return true;
}

bool StepReplay::stays(int32_t v, int32_t value) const {
    if (v == value) return true;
    if (state_[at(v)] == State::dropped) return true;
    return state_[at(v)] == State::dropped_lazy && needed_[at(v)] == need_;
}

void StepReplay::run_again(int32_t k, int32_t value) {
    act(false, PlannedAction::run, k);
    ran_seconds_ += graph_.seconds[at(k)];
    seconds_ += graph_.seconds[at(k)];
    // Results that are there already are made once more, and end at once.
    std::vector<int32_t>& kept = kept_;
    kept.clear();
    with_workspace(k, [&] {
        for (auto v = graph_.births.begin(k); v != graph_.births.end(k); ++v) {
            const bool twice = !low_[at(*v)] || state_[at(*v)] == State::present || is_stored(*v);
            if (twice) {
                rise(bytes_[at(*v)]);
                if (schedule_) twice_.push_back(add_block(bytes_[at(*v)]));
                twice_bytes_ += bytes_[at(*v)];
            } else {
                stays_[at(*v)] = stays(*v, value);
                again_[at(*v)] = stays_[at(*v)] ? State::present : state_[at(*v)];
                enter(*v);
                kept.push_back(*v);
            }
        }
    });
    live_ -= twice_bytes_;
    twice_bytes_ = 0;
    for (const int32_t block : twice_) blocks_[at(block)].ends = clock_++;
    twice_.clear();
    for (const int32_t v : kept)
        if (uses_[at(v)] == 0 && !stays_[at(v)]) drop_again(v);
    for (auto v = graph_.reads.begin(k); v != graph_.reads.end(k); ++v) {
        if (uses_[at(*v)] == 0) continue;
        --uses_[at(*v)];
        if (uses_[at(*v)] == 0 && made_again(*v) && !stays_[at(*v)]) drop_again(*v);
    }
}

bool StepReplay::made_again(int32_t v) const {
    return state_[at(v)] == State::present && again_[at(v)] != State::present;
}

void StepReplay::drop_again(int32_t v) {
    act(false, PlannedAction::drop, v);
    leave(v);
    state_[at(v)] = std::exchange(again_[at(v)], State::present);
}

void StepReplay::finish() {
    for (Block& block : blocks_) block.ends = std::min(block.ends, clock_ + 1);
    schedule_->top_bytes = lay_out(blocks_, peak_, schedule_->places);
    schedule_->live_bytes = peak_;
    schedule_->seconds = seconds_;
}

void StepReplay::overlap(StepSchedule& schedule) {
    overlap_transfers(timeline_, prices_.spill_s_per_byte / 2, blocks_, schedule);
}

}  // namespace accelera::planner
