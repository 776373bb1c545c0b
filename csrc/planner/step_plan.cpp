#include "planner/step_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "planner/step_replay.h"

namespace accelera::planner {

namespace {

/// Moves values away from the peak, the cheapest first.
class Demotion {
  public:
    Demotion(const StepGraph& graph, const StepPrices& prices)
        : graph_(graph),
          prices_(prices),
          gaps_(gaps_of(graph, prices.least_bytes)),
          replay_(graph, prices, gaps_),
          long_(graph.seconds.size() * gaps_.size() > long_work) {
        fates_.assign(gaps_.size(), GapFate::keep);
        scores_.assign(gaps_.size() * n_kinds, 0);
        known_.assign(gaps_.size() * n_kinds, 0);
    }

    std::vector<StepChoice> run() {
        seconds_ = replay_.run(fates_);
        peak_ = replay_.peak();
        peak_at_ = replay_.peak_at();
        keep_choice();
        while (move_one()) {
        }
        const std::vector<StepChoice> found = choices_;
        // Nothing takes less than all gaps in the file, however long that takes.
        const StepChoice last = found.back();
        fates_.assign(gaps_.size(), GapFate::offload);
        const double seconds = replay_.run(fates_);
        const StepChoice floor{fates_, seconds, replay_.peak(), 0};
        choices_.push_back(floor);
        for (int64_t i = 1; i < ladder && !long_; ++i) {
            if (floor.live_bytes < last.live_bytes)
                take_back(floor, floor.live_bytes + (last.live_bytes - floor.live_bytes) * i / ladder);
            const StepChoice& one = found[at(int64_t(found.size()) * i / ladder)];
            take_back(one, one.live_bytes);
        }
        return std::move(choices_);
    }

  private:
    static constexpr int64_t ladder = 8;
    static constexpr GapFate kinds[] = {GapFate::pack, GapFate::recompute, GapFate::recompute_lazy,
                                        GapFate::offload};
    static constexpr int64_t n_kinds = std::size(kinds);
    static constexpr double refused = std::numeric_limits<double>::max();

    /// Scores of a long step are those of single operations, and many values leave at once: the replay that
    /// judges them all is what takes time.
    bool move_many() {
        const std::vector<int64_t> some = candidates();
        if (some.empty()) return false;
        std::vector<GapFate> before = fates_;
        const size_t many = std::max<size_t>(1, gaps_.size() / 128);
        std::vector<int64_t> taken;
        for (const int64_t i : some) {
            if (fates_[at(i / n_kinds)] != GapFate::keep) continue;
            fates_[at(i / n_kinds)] = kinds[i % n_kinds];
            taken.push_back(i);
            if (taken.size() == many) break;
        }
        const double seconds = replay_.run(fates_);
        if (seconds != impossible && replay_.peak() <= peak_) {
            accept(seconds);
            return true;
        }
        fates_ = std::move(before);
        for (const int64_t i : taken) {
            known_[at(i)] = round_;
            scores_[at(i)] = refused;
        }
        return true;
    }

    /// What a choice has values do that need not, under a peak: the largest first, they stay, or run again.
    void take_back(StepChoice choice, int64_t most_bytes) {
        std::vector<int32_t> order;
        for (size_t g = 0; g < gaps_.size(); ++g)
            if (choice.fates[g] != GapFate::keep) order.push_back(int32_t(g));
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return graph_.nbytes[at(gaps_[at(a)].value)] > graph_.nbytes[at(gaps_[at(b)].value)];
        });
        for (const int32_t g : order) take_back_one(choice, g, most_bytes);
        replay_.run(choice.fates);
        choice.live_bytes = replay_.peak();
        choices_.push_back(std::move(choice));
    }

    void take_back_one(StepChoice& choice, int32_t g, int64_t most_bytes) {
        const GapFate before = choice.fates[at(g)];
        for (const GapFate fate : {GapFate::keep, GapFate::pack, GapFate::recompute}) {
            if (fate == before) return;
            if (!replay_.allows(gaps_[at(g)].value, fate)) continue;
            choice.fates[at(g)] = fate;
            const double seconds = replay_.run(choice.fates);
            if (seconds < choice.seconds && replay_.peak() <= most_bytes) {
                choice.seconds = seconds;
                return;
            }
            choice.fates[at(g)] = before;
        }
    }

    void accept(double seconds) {
        seconds_ = seconds;
        const bool lower = replay_.peak() < peak_;
        peak_ = replay_.peak();
        peak_at_ = replay_.peak_at();
        if (!lower) return;
        ++round_;
        keep_choice();
    }

    /// What a fate takes from the peak.
    double freed_bytes(int64_t i) const {
        const auto value = at(gaps_[at(i / n_kinds)].value);
        const bool packed = kinds[i % n_kinds] == GapFate::pack;
        const int64_t rest = packed ? block_bytes_of(graph_.packed_bytes[value]) : 0;
        return double(block_bytes_of(graph_.nbytes[value]) - rest);
    }

    /// Seconds, of an operation that runs again by itself or of the file, per byte and operation spanned.
    double static_score(int64_t i) const {
        const Gap& gap = gaps_[at(i / n_kinds)];
        const double nbytes = freed_bytes(i), span = gap.before - gap.after;
        const GapFate fate = kinds[i % n_kinds];
        if (fate == GapFate::offload) return prices_.spill_s_per_byte / span;
        if (fate == GapFate::pack) return graph_.pack_seconds[at(gap.value)] / nbytes / span;
        return graph_.seconds[at(graph_.born[at(gap.value)])] / nbytes / span;
    }

    bool move_one() {
        if (long_) return move_many();
        for (;;) {
            const int64_t best = cheapest();
            if (best < 0) return false;
            const auto gap = at(best / n_kinds);
            const GapFate before = fates_[gap];
            fates_[gap] = kinds[best % n_kinds];
            const double seconds = replay_.run(fates_);
            if (seconds == impossible || replay_.peak() > peak_) {
                fates_[gap] = before;
                known_[at(best)] = round_;
                scores_[at(best)] = refused;
                continue;
            }
            accept(seconds);
            return true;
        }
    }

    /// Fates of gaps that span the peak, by what is known of their scores.
    std::vector<int64_t> candidates() {
        std::vector<int64_t> some;
        for (size_t g = 0; g < gaps_.size(); ++g) {
            if (fates_[g] != GapFate::keep || gaps_[g].after >= peak_at_ || gaps_[g].before <= peak_at_)
                continue;
            for (int64_t k = 0; k < n_kinds; ++k) {
                if (!replay_.allows(gaps_[g].value, kinds[k])) continue;
                if (kinds[k] == GapFate::recompute_lazy && long_) continue;
                const auto i = int64_t(g) * n_kinds + k;
                if (scores_[at(i)] == refused && known_[at(i)] == round_) continue;
                if (scores_[at(i)] == impossible) continue;
                some.push_back(i);
            }
        }
        std::sort(some.begin(), some.end(), [&](int64_t a, int64_t b) {
            const double x = long_ ? static_score(a) : stale(a), y = long_ ? static_score(b) : stale(b);
            return x != y ? x < y : a < b;
        });
        return some;
    }

    /// The least seconds per byte among them; stale scores are tried first.
    int64_t cheapest() {
        const std::vector<int64_t> some = candidates();
        int64_t best = -1;
        double least = impossible;
        for (const int64_t i : some) {
            if (best >= 0 && 0.7 * stale(i) >= least) break;
            const double score = score_of(i);
            if (score < least) {
                least = score;
                best = i;
            }
        }
        return best;
    }

    double stale(int64_t i) const { return scores_[at(i)] == refused ? 0 : scores_[at(i)]; }

    double score_of(int64_t i) {
        const auto gap = at(i / n_kinds);
        const GapFate before = std::exchange(fates_[gap], kinds[i % n_kinds]);
        const double seconds = replay_.run(fates_);
        fates_[gap] = before;
        double score = impossible;
        if (seconds != impossible) score = (seconds - seconds_) / freed_bytes(i);
        scores_[at(i)] = score;
        known_[at(i)] = -1;
        return score;
    }

    void keep_choice() { choices_.push_back({fates_, seconds_, peak_, 0}); }

    static constexpr size_t long_work = 300'000;

    const StepGraph& graph_;
    const StepPrices& prices_;
    const std::vector<Gap> gaps_;
    StepReplay replay_;
    const bool long_;  ///< a step of so many operations that values leave in groups
    std::vector<GapFate> fates_;
    std::vector<double> scores_;
    std::vector<int64_t> known_;
    std::vector<StepChoice> choices_;
    double seconds_ = 0;
    int64_t peak_ = 0, round_ = 0;
    int32_t peak_at_ = 0;
};

}  // namespace

std::vector<Gap> gaps_of(const StepGraph& graph, int64_t least_bytes) {
    std::vector<std::vector<int32_t>> touches(graph.nbytes.size());
    for (int32_t t = 0; t < int32_t(graph.seconds.size()); ++t)
        for (const Lists* list : {&graph.births, &graph.reads, &graph.writes})
            for (auto v = list->begin(t); v != list->end(t); ++v)
                if (touches[at(*v)].empty() || touches[at(*v)].back() != t) touches[at(*v)].push_back(t);
    std::vector<Gap> gaps;
    for (size_t v = 0; v < touches.size(); ++v) {
        if (graph.born[v] < 0 || graph.freed[v] == never || graph.fixed[v]) continue;
        if (graph.nbytes[v] < least_bytes) continue;
        for (size_t i = 1; i < touches[v].size(); ++i)
            if (touches[v][i] - touches[v][i - 1] > 1)
                gaps.push_back({int32_t(v), touches[v][i - 1], touches[v][i]});
    }
    return gaps;
}

std::vector<StepChoice> plan_step(const StepGraph& graph, const StepPrices& prices) {
    std::vector<StepChoice> choices = Demotion(graph, prices).run();
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    StepReplay replay(graph, prices, gaps);
    std::stable_sort(choices.begin(), choices.end(), [](const StepChoice& a, const StepChoice& b) {
        return a.live_bytes != b.live_bytes ? a.live_bytes > b.live_bytes : a.seconds < b.seconds;
    });
    // Choices of nearly the same peak differ by nothing a budget would tell apart: the fastest of them
    // counts.
    std::vector<StepChoice> frontier;
    const int64_t least_step = choices.front().live_bytes / 256;
    for (size_t i = 0; i < choices.size(); ++i) {
        const bool ends = frontier.empty() || i + 1 == choices.size();
        const bool near = !ends && frontier.back().live_bytes - choices[i].live_bytes < least_step;
        if (near && choices[i].seconds >= frontier.back().seconds) continue;
        frontier.push_back(std::move(choices[i]));
    }
    for (StepChoice& choice : frontier) choice.top_bytes = replay.top(choice.fates);
    std::stable_sort(frontier.begin(), frontier.end(), [](const StepChoice& a, const StepChoice& b) {
        return a.seconds != b.seconds ? a.seconds < b.seconds : a.top_bytes < b.top_bytes;
    });
    std::vector<StepChoice> result;
    for (StepChoice& choice : frontier)
        if (result.empty() || choice.top_bytes < result.back().top_bytes) result.push_back(std::move(choice));
    return result;
}

StepSchedule schedule_step(const StepGraph& graph, const StepPrices& prices,
                           const std::vector<GapFate>& fates, bool overlap) {
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    StepSchedule schedule;
    StepReplay replay(graph, prices, gaps);
    const bool possible = replay.run(fates, &schedule) != impossible;
    if (overlap && possible) replay.overlap(schedule);
    return schedule;
}

double added_seconds(const StepGraph& graph, const StepPrices& prices, const std::vector<GapFate>& fates) {
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    return StepReplay(graph, prices, gaps).run(fates);
}

}  // namespace accelera::planner
