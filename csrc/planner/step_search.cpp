#include "planner/step_search.h"

#include <algorithm>
#include <utility>

namespace accelera::planner {

namespace {

constexpr GapFate all_fates[] = {GapFate::keep, GapFate::pack, GapFate::recompute, GapFate::recompute_lazy,
                                 GapFate::offload};

}  // namespace

bool Frontier::lacks(int64_t peak, double seconds) const {
    const auto next = by_peak_.upper_bound(key_of(peak));
    return next == by_peak_.begin() || std::prev(next)->second.choice.seconds > seconds;
}

void Frontier::offer(int64_t peak, double seconds, const std::vector<GapFate>& fates) {
    if (!lacks(peak, seconds)) return;
    auto next = by_peak_.upper_bound(key_of(peak));
    while (next != by_peak_.end() && next->second.choice.seconds >= seconds) next = by_peak_.erase(next);
    by_peak_[key_of(peak)] = {{fates, seconds, peak}, false};
}

std::vector<StepChoice> Frontier::choices(double least_seconds) const {
    std::vector<StepChoice> found;
    for (const auto& [key, entry] : by_peak_) {
        const double seconds = entry.choice.seconds;
        const bool alike = !found.empty() && found.back().seconds - seconds < least_seconds &&
                           found.back().seconds < 1.1 * seconds;
        if (!alike) found.push_back(entry.choice);
    }
    return found;
}

const StepChoice* Frontier::next() {
    for (auto& [key, entry] : by_peak_)
        if (!std::exchange(entry.asked, true)) return &entry.choice;
    return nullptr;
}

StepSearch::StepSearch(const StepGraph& graph, const StepPrices& prices, const std::vector<Gap>& gaps)
    : graph_(graph),
      gaps_(gaps),
      replay_(graph, prices, gaps_),
      fates_(gaps.size(), GapFate::keep),
      scores_(gaps.size() > long_step ? 0 : gaps.size() * n_fates),
      refused_(gaps.size() > long_step ? 0 : gaps.size() * n_fates, -1),
      can_run_again_(gaps.size()),
      last_read_(graph.nbytes.size(), -1),
      frontier_([&] {
          replay_.run(fates_);
          return work() <= tiny_work ? 64 : replay_.peak() / 1024;
      }()) {
    start_from(fates_);
    middle_ = peak_at_;
    for (int32_t t = 0; t <= middle_; ++t)
        for (auto v = graph.reads.begin(t); v != graph.reads.end(t); ++v) last_read_[at(*v)] = t;
    for (size_t g = 0; g < gaps.size(); ++g)
        can_run_again_[g] = replay_.allows(gaps[g].value, GapFate::recompute) &&
                            try_move({int32_t(g), GapFate::recompute}) != impossible;
}

Frontier StepSearch::run() {
    if (gaps_.size() > long_step) {
        move_at_once();
        return std::move(frontier_);
    }
    descend();
    climb(peak_);
    for (const int32_t count : {8, 24}) {
        start_from(blocks(count));
        if (seconds_ == impossible) continue;
        reconsider(peak_);
        descend();
    }
    if (work() <= short_work) polish();
    return std::move(frontier_);
}

void StepSearch::start_from(std::vector<GapFate> fates) {
    fates_ = std::move(fates);
    seconds_ = replay_.run_base(fates_);
    peak_ = replay_.peak();
    peak_at_ = replay_.peak_at();
    offer(seconds_);
}

double StepSearch::try_move(Move move, int64_t most_bytes) {
    const GapFate before = std::exchange(fates_[at(move.gap)], move.fate);
    const double seconds = replay_.run_changed(fates_, move.gap, most_bytes);
    offer(seconds);
    fates_[at(move.gap)] = before;
    return seconds;
}

void StepSearch::offer(double seconds) {
    if (seconds == impossible || !frontier_.lacks(replay_.peak(), seconds)) return;
    // Holes between a few blocks may be large.
    const int64_t peak = work() <= tiny_work ? replay_.top(fates_) : replay_.peak();
    frontier_.offer(peak, seconds, fates_);
}

void StepSearch::make(Move move) {
    fates_[at(move.gap)] = move.fate;
    start_from(std::move(fates_));
}

// --- down from a peak

void StepSearch::descend() {
    ++round_;
    // Under a peak that is no lower than the last time, it could undo the moves since then, without end.
    int64_t reconsidered = peak_ + 1;
    for (int32_t moves = 1; move_one(); ++moves) {
        if (moves % every || peak_ >= reconsidered) continue;
        reconsidered = peak_;
        reconsider(peak_);
    }
    reconsider(peak_);
}

bool StepSearch::move_one() {
    for (;;) {
        const Move best = cheapest();
        if (best.gap < 0) return false;
        if (try_move(best, peak_) == impossible) {
            refused_[slot(best)] = round_;
            continue;
        }
        const int64_t before = peak_;
        make(best);
        if (peak_ < before) ++round_;
        return true;
    }
}

/// The least seconds per byte; stale scores are tried first.
StepSearch::Move StepSearch::cheapest() {
    Move best{-1, GapFate::keep};
    double least = impossible;
    for (const Move move : candidates()) {
        if (best.gap >= 0 && 0.7 * stale(move) >= least) break;
        const double score = score_of(move);
        if (score >= least) continue;
        least = score;
        best = move;
    }
    return best;
}

/// Fates of gaps that span the peak, by what is known of their scores.
std::vector<StepSearch::Move> StepSearch::candidates() const {
    std::vector<Move> some;
    for (size_t g = 0; g < gaps_.size(); ++g) {
        if (fates_[g] != GapFate::keep || gaps_[g].after >= peak_at_ || gaps_[g].before <= peak_at_) continue;
        for (const GapFate fate : all_fates)
            if (is_candidate({int32_t(g), fate})) some.push_back({int32_t(g), fate});
    }
    std::stable_sort(some.begin(), some.end(), [&](Move a, Move b) { return stale(a) < stale(b); });
    return some;
}

bool StepSearch::is_candidate(Move move) const {
    if (!is_possible(move) || refused_[slot(move)] == round_) return false;
    // What drops results on the way takes no less time; it is for where the others raise the peak.
    return move.fate != GapFate::recompute_lazy || refused_[slot({move.gap, GapFate::recompute})] == round_;
}

bool StepSearch::is_possible(Move move) const {
    const bool again = move.fate == GapFate::recompute || move.fate == GapFate::recompute_lazy;
    if (again && !can_run_again_[at(move.gap)]) return false;
    return move.fate != fates_[at(move.gap)] && replay_.allows(gaps_[at(move.gap)].value, move.fate);
}

double StepSearch::stale(Move move) const { return refused_[slot(move)] >= 0 ? 0 : scores_[slot(move)]; }

double StepSearch::score_of(Move move) {
    refused_[slot(move)] = -1;
    return scores_[slot(move)] = computed_score(move);
}

double StepSearch::computed_score(Move move) {
    const double seconds = try_move(move);
    return seconds == impossible ? seconds : (seconds - seconds_) / freed_bytes(move);
}

double StepSearch::freed_bytes(Move move) const {
    const int64_t packed = graph_.packed_bytes[at(gaps_[at(move.gap)].value)];
    return double(nbytes(move.gap) - (move.fate == GapFate::pack ? block_bytes_of(packed) : 0));
}

// --- back up

void StepSearch::reconsider(int64_t most_bytes) {
    std::vector<int32_t> order;
    for (size_t g = 0; g < gaps_.size(); ++g)
        if (fates_[g] != GapFate::keep) order.push_back(int32_t(g));
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return nbytes(a) > nbytes(b); });
    for (const int32_t g : order) reconsider_one(g, most_bytes);
}

void StepSearch::reconsider_one(int32_t gap, int64_t most_bytes) {
    const GapFate before = fates_[at(gap)];
    for (const GapFate fate :
         {GapFate::keep, GapFate::recompute, GapFate::recompute_lazy, GapFate::offload}) {
        const bool again = fate == GapFate::recompute || fate == GapFate::recompute_lazy;
        if (fate == before || (again && !can_run_again_[at(gap)])) continue;
        if (try_move({gap, fate}, most_bytes) >= seconds_) continue;
        make({gap, fate});
        return;
    }
}

void StepSearch::climb(int64_t upper) {
    start_from(std::vector<GapFate>(gaps_.size(), GapFate::offload));
    const int64_t floor = peak_;
    for (int32_t i = 0; i < ladder; ++i) reconsider(floor + std::max<int64_t>(0, upper - floor) * i / ladder);
}

// --- blocks of operations

/// Operations after which the least is needed by others before the free peak, one in each of so many parts.
std::vector<int32_t> StepSearch::borders(int32_t count) const {
    std::vector<int64_t> needed(at(middle_) + 2);
    for (size_t v = 0; v < last_read_.size(); ++v) {
        if (graph_.born[v] < 0 || graph_.freed[v] == never || last_read_[v] <= graph_.born[v]) continue;
        needed[at(graph_.born[v])] += graph_.nbytes[v];
        needed[at(last_read_[v])] -= graph_.nbytes[v];
    }
    for (size_t t = 1; t < needed.size(); ++t) needed[t] += needed[t - 1];
    std::vector<int32_t> found;
    for (int32_t i = 0; i < count; ++i) {
        const auto first = needed.begin() + int64_t(middle_) * i / count;
        const auto end = needed.begin() + int64_t(middle_) * (i + 1) / count;
        if (first < end) found.push_back(int32_t(std::min_element(first, end) - needed.begin()));
    }
    return found;
}

/// Of values idle at the free peak those that cross a border stay; all others run again, or go to the file.
std::vector<GapFate> StepSearch::blocks(int32_t count) const {
    const std::vector<int32_t> all = borders(count);
    std::vector<GapFate> fates(gaps_.size(), GapFate::keep);
    for (size_t g = 0; g < gaps_.size(); ++g) {
        const auto v = at(gaps_[g].value);
        if (gaps_[g].after >= middle_ || gaps_[g].before <= middle_) continue;
        const auto crossed = [&](int32_t t) { return graph_.born[v] <= t && t < last_read_[v]; };
        if (std::any_of(all.begin(), all.end(), crossed)) continue;
        fates[g] = can_run_again_[g] ? GapFate::recompute : GapFate::offload;
    }
    return fates;
}

// --- all of a short step, and the most of a long one

void StepSearch::polish() {
    tries_left_ = short_work * 400 / int64_t(graph_.seconds.size());
    for (const StepChoice* one = frontier_.next(); one && tries_left_ > 0; one = frontier_.next()) {
        start_from(std::vector<GapFate>(one->fates));
        change(work() <= tiny_work ? 2 : 1);
    }
}

void StepSearch::change(int count) {
    const std::vector<GapFate> fates = fates_;
    for (int32_t g = 0; g < int32_t(gaps_.size()); ++g)
        for (const GapFate fate : all_fates) {
            if (!is_possible({g, fate})) continue;
            --tries_left_;
            if (count == 1) {
                try_move({g, fate});
                continue;
            }
            make({g, fate});
            if (seconds_ != impossible) change(count - 1);
            start_from(std::vector<GapFate>(fates));
        }
}

/// Scores are those of the free step, and many values leave at once.
void StepSearch::move_at_once() {
    struct Scored {
        double score;
        Move move;
    };
    std::vector<Scored> moves;
    moves.reserve(gaps_.size());
    for (size_t g = 0; g < gaps_.size(); ++g) {
        const Move offload{int32_t(g), GapFate::offload};
        Scored best{computed_score(offload), offload};
        for (const GapFate fate : {GapFate::pack, GapFate::recompute}) {
            const Move move{int32_t(g), fate};
            if (!is_possible(move)) continue;
            if (const double score = computed_score(move); score < best.score) best = {score, move};
        }
        moves.push_back(best);
    }
    std::stable_sort(moves.begin(), moves.end(),
                     [](const Scored& a, const Scored& b) { return a.score < b.score; });
    const size_t some = moves.size() / 128 + 1;
    for (size_t i = 0; i < moves.size(); ++i) {
        fates_[at(moves[i].move.gap)] = moves[i].move.fate;
        if (i % some == 0) start_from(std::move(fates_));
    }
    start_from(std::vector<GapFate>(gaps_.size(), GapFate::offload));
}

}  // namespace accelera::planner
