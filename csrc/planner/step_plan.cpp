#include "planner/step_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace accelera::planner {

namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();
constexpr int32_t never = std::numeric_limits<int32_t>::max();

size_t at(int64_t index) { return static_cast<size_t>(index); }

int64_t rounded(int64_t nbytes) { return (nbytes < 1 ? 64 : nbytes + 63) / 64 * 64; }

/// A block of the arena, and when it is there.
struct Block {
    int64_t nbytes;
    int32_t begins;
    int32_t ends;
};

/// Places of blocks, the largest first, each as low as possible.
int64_t lay_out(const std::vector<Block>& blocks, std::vector<int64_t>* places) {
    std::vector<int32_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return blocks[at(a)].nbytes > blocks[at(b)].nbytes; });
    std::vector<int64_t> found(blocks.size(), -1);
    std::vector<std::pair<int64_t, int32_t>> placed;  // by place
    int64_t top = 0;
    for (const int32_t i : order) {
        const Block& block = blocks[at(i)];
        int64_t place = 0;
        for (const auto& [other_place, k] : placed) {
            const Block& other = blocks[at(k)];
            if (other.ends <= block.begins || block.ends <= other.begins) continue;
            if (other_place >= place + block.nbytes) break;
            place = std::max(place, other_place + other.nbytes);
        }
        found[at(i)] = place;
        const std::pair<int64_t, int32_t> entry{place, i};
        placed.insert(std::upper_bound(placed.begin(), placed.end(), entry), entry);
        top = std::max(top, place + block.nbytes);
    }
    if (places) *places = std::move(found);
    return top;
}

/// Replays a step under fates of its gaps.
class Replay {
  public:
    Replay(const StepGraph& graph, const StepPrices& prices, const std::vector<Gap>& gaps)
        : graph_(graph),
          prices_(prices),
          gaps_(gaps),
          n_(int32_t(graph.seconds.size())),
          low_(graph.nbytes.size()),
          bytes_(graph.nbytes.size()),
          producer_(graph.nbytes.size(), -1),
          valid_until_(graph.seconds.size(), never),
          freed_at_(graph.seconds.size()),
          starts_(graph.seconds.size()),
          state_(graph.nbytes.size()),
          gap_of_(graph.nbytes.size()),
          needed_(graph.nbytes.size()),
          visited_(graph.nbytes.size()),
          in_run_(graph.seconds.size()),
          block_(graph.nbytes.size()) {
        for (size_t v = 0; v < bytes_.size(); ++v) {
            bytes_[v] = rounded(graph.nbytes[v]);
            low_[v] = graph.born[v] >= 0 && graph.freed[v] != never;
            if (low_[v])
                freed_at_[at(std::clamp(graph.freed[v], graph.born[v], n_ - 1))].push_back(int32_t(v));
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
        for (size_t g = 0; g < gaps.size(); ++g) starts_[at(gaps[g].after)].push_back(int32_t(g));
    }

    /// Added seconds; `impossible` where a value cannot be made again.
    double run(const std::vector<GapFate>& fates, StepSchedule* schedule = nullptr) {
        begin(fates, schedule);
        for (int32_t t = 0; t < n_; ++t) {
            now_ = t;
            if (!restore_operands(t)) return impossible;
            run_operation(t);
            for (const int32_t v : freed_at_[at(t)]) {
                if (state_[at(v)] == State::present) leave(v);
                state_[at(v)] = State::dead;
            }
            for (const int32_t g : starts_[at(t)]) evict(g);
        }
        if (schedule) finish();
        return seconds_;
    }

    int64_t peak() const { return peak_; }
    int32_t peak_at() const { return peak_at_; }
    /// Tops of the arena under fates.
    int64_t top(const std::vector<GapFate>& fates) {
        StepSchedule schedule;
        return run(fates, &schedule) == impossible ? -1 : schedule.top_bytes;
    }
    bool can_recompute(int32_t value) const { return producer_[at(value)] >= 0; }

  private:
    enum class State : uint8_t { unborn, present, dropped, filed, dead };

    void begin(const std::vector<GapFate>& fates, StepSchedule* schedule) {
        fates_ = &fates;
        schedule_ = schedule;
        std::fill(state_.begin(), state_.end(), State::unborn);
        std::fill(gap_of_.begin(), gap_of_.end(), -1);
        std::fill(again_.begin(), again_.end(), State::present);
        uses_.assign(bytes_.size(), -1);
        seconds_ = 0;
        live_ = peak_ = 0;
        peak_at_ = 0;
        clock_ = 0;
        blocks_.clear();
    }

    void act(bool after, int kind, int32_t subject) {
        if (schedule_) schedule_->actions.push_back({now_, after, uint8_t(kind), subject});
    }
    void rise(int64_t nbytes) {
        live_ += nbytes;
        if (live_ > peak_) {
            peak_ = live_;
            peak_at_ = now_;
        }
    }
    int32_t add_block(int64_t nbytes) {
        blocks_.push_back({nbytes, clock_++, never});
        return int32_t(blocks_.size()) - 1;
    }
    void enter(int32_t v) {
        rise(bytes_[at(v)]);
        if (schedule_) block_[at(v)] = add_block(bytes_[at(v)]);
        state_[at(v)] = State::present;
    }
    void leave(int32_t v) {
        live_ -= bytes_[at(v)];
        if (schedule_) blocks_[at(block_[at(v)])].ends = clock_++;
    }
    /// The workspace of an operation, while `body` enters what it makes.
    template <typename Body>
    void with_workspace(int32_t t, Body body) {
        const int64_t nbytes = graph_.workspace[at(t)] ? rounded(graph_.workspace[at(t)]) : 0;
        int32_t block = -1;
        if (nbytes) {
            rise(nbytes);
            if (schedule_) block = add_block(nbytes);
        }
        body();
        live_ -= nbytes;
        if (block >= 0) blocks_[at(block)].ends = clock_++;
    }

    void run_operation(int32_t t) {
        with_workspace(t, [&] {
            for (auto v = graph_.births.begin(t); v != graph_.births.end(t); ++v)
                if (low_[at(*v)])
                    enter(*v);
                else
                    state_[at(*v)] = State::present;
        });
    }

    void evict(int32_t g) {
        const Gap& gap = gaps_[at(g)];
        const GapFate fate = (*fates_)[at(g)];
        if (fate == GapFate::keep || state_[at(gap.value)] != State::present) return;
        gap_of_[at(gap.value)] = g;
        const bool filed = fate == GapFate::offload;
        act(true, filed ? 2 : 1, gap.value);
        if (filed) seconds_ += prices_.spill_s_per_byte * double(bytes_[at(gap.value)]);
        leave(gap.value);
        state_[at(gap.value)] = filed ? State::filed : State::dropped;
    }

    bool is_away(int32_t v) const {
        return low_[at(v)] && (state_[at(v)] == State::dropped || state_[at(v)] == State::filed);
    }

    bool restore_operands(int32_t t) {
        ++need_;
        for (auto v = graph_.reads.begin(t); v != graph_.reads.end(t); ++v) needed_[at(*v)] = need_;
        for (auto v = graph_.reads.begin(t); v != graph_.reads.end(t); ++v) {
            if (!is_away(*v)) continue;
            if (state_[at(*v)] == State::filed)
                fetch(*v);
            else if (!recompute(*v))
                return false;
        }
        return true;
    }

    void fetch(int32_t v) {
        act(false, 3, v);
        enter(v);
    }

    bool recompute(int32_t value) {
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

    /// Operations that have to run so that a value is there.
    bool collect(int32_t value) {
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
                if (state_[at(*v)] == State::filed)
                    filed_.push_back(*v);
                else
                    left_.push_back(*v);
            }
        }
        for (const int32_t v : filed_)
            if (state_[at(v)] == State::filed) fetch(v);
        filed_.clear();
        return true;
    }

    bool stays(int32_t v, int32_t value) const {
        if (v == value) return true;
        if (state_[at(v)] != State::dropped) return false;
        return needed_[at(v)] == need_ || (*fates_)[at(gap_of_[at(v)])] == GapFate::recompute;
    }

    void run_again(int32_t k, int32_t value) {
        act(false, 0, k);
        seconds_ += graph_.seconds[at(k)];
        // Results that are there already are made once more, and end at once.
        std::vector<int32_t>& kept = kept_;
        kept.clear();
        with_workspace(k, [&] {
            for (auto v = graph_.births.begin(k); v != graph_.births.end(k); ++v) {
                const bool twice =
                    !low_[at(*v)] || state_[at(*v)] == State::present || state_[at(*v)] == State::filed;
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
        for (auto v = graph_.reads.begin(k); v != graph_.reads.end(k); ++v)
            if (uses_[at(*v)] > 0 && --uses_[at(*v)] == 0 && made_again(*v) && !stays_[at(*v)])
                drop_again(*v);
    }

    bool made_again(int32_t v) const {
        return state_[at(v)] == State::present && again_[at(v)] != State::present;
    }

    /// It goes back to what it was before it was made for another's sake.
    void drop_again(int32_t v) {
        act(false, 1, v);
        leave(v);
        state_[at(v)] = std::exchange(again_[at(v)], State::present);
    }

    void finish() {
        for (Block& block : blocks_) block.ends = std::min(block.ends, clock_ + 1);
        schedule_->top_bytes = lay_out(blocks_, &schedule_->places);
        schedule_->live_bytes = peak_;
        schedule_->seconds = seconds_;
    }

    const StepGraph& graph_;
    const StepPrices& prices_;
    const std::vector<Gap>& gaps_;
    const int32_t n_;
    std::vector<uint8_t> low_;
    std::vector<int64_t> bytes_;
    std::vector<int32_t> producer_, valid_until_;
    std::vector<std::vector<int32_t>> freed_at_, starts_;
    std::vector<State> state_;
    std::vector<State> again_ = std::vector<State>(state_.size(), State::present);
    std::vector<uint8_t> stays_ = std::vector<uint8_t>(state_.size());
    std::vector<int32_t> gap_of_;
    std::vector<int64_t> needed_, visited_, in_run_;
    std::vector<int32_t> block_;
    std::vector<int32_t> uses_, run_, left_, filed_, kept_, twice_;
    std::vector<Block> blocks_;
    const std::vector<GapFate>* fates_ = nullptr;
    StepSchedule* schedule_ = nullptr;
    double seconds_ = 0;
    int64_t live_ = 0, peak_ = 0, twice_bytes_ = 0, mark_ = 0, need_ = 0;
    int32_t now_ = 0, peak_at_ = 0, clock_ = 0;
};

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
        scores_.assign(gaps_.size() * 3, 0);
        known_.assign(gaps_.size() * 3, 0);
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
    static constexpr GapFate kinds[] = {GapFate::recompute, GapFate::recompute_lazy, GapFate::offload};
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
            if (fates_[at(i / 3)] != GapFate::keep) continue;
            fates_[at(i / 3)] = kinds[i % 3];
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
        for (const GapFate fate : {GapFate::keep, GapFate::recompute}) {
            if (fate == before) return;
            if (fate != GapFate::keep && !replay_.can_recompute(gaps_[at(g)].value)) return;
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

    /// Seconds, of an operation that runs again by itself or of the file, per byte and operation spanned.
    double static_score(int64_t i) const {
        const Gap& gap = gaps_[at(i / 3)];
        const double nbytes = double(rounded(graph_.nbytes[at(gap.value)])), span = gap.before - gap.after;
        if (i % 3 == 2) return prices_.spill_s_per_byte / span;
        return graph_.seconds[at(graph_.born[at(gap.value)])] / nbytes / span;
    }

    bool move_one() {
        if (long_) return move_many();
        for (;;) {
            const int64_t best = cheapest();
            if (best < 0) return false;
            const auto gap = at(best / 3);
            const GapFate before = fates_[gap];
            fates_[gap] = kinds[best % 3];
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
            for (int k = 0; k < 3; ++k) {
                if (k < 2 && !replay_.can_recompute(gaps_[g].value)) continue;
                if (k == 1 && long_) continue;
                const auto i = int64_t(g) * 3 + k;
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
        const auto gap = at(i / 3);
        const GapFate before = std::exchange(fates_[gap], kinds[i % 3]);
        const double seconds = replay_.run(fates_);
        fates_[gap] = before;
        double score = impossible;
        if (seconds != impossible)
            score = (seconds - seconds_) / double(rounded(graph_.nbytes[at(gaps_[gap].value)]));
        scores_[at(i)] = score;
        known_[at(i)] = -1;
        return score;
    }

    void keep_choice() { choices_.push_back({fates_, seconds_, peak_, 0}); }

    static constexpr size_t long_work = 300'000;

    const StepGraph& graph_;
    const StepPrices& prices_;
    const std::vector<Gap> gaps_;
    Replay replay_;
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
        if (graph.born[v] < 0 || graph.freed[v] == never || graph.nbytes[v] < least_bytes) continue;
        for (size_t i = 1; i < touches[v].size(); ++i)
            if (touches[v][i] - touches[v][i - 1] > 1)
                gaps.push_back({int32_t(v), touches[v][i - 1], touches[v][i]});
    }
    return gaps;
}

std::vector<StepChoice> plan_step(const StepGraph& graph, const StepPrices& prices) {
    std::vector<StepChoice> choices = Demotion(graph, prices).run();
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    Replay replay(graph, prices, gaps);
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
                           const std::vector<GapFate>& fates) {
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    StepSchedule schedule;
    Replay(graph, prices, gaps).run(fates, &schedule);
    return schedule;
}

double added_seconds(const StepGraph& graph, const StepPrices& prices, const std::vector<GapFate>& fates) {
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    return Replay(graph, prices, gaps).run(fates);
}

}  // namespace accelera::planner
