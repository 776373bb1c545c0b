#pragma once

#include <limits>
#include <map>
#include <vector>

#include "planner/step_plan.h"
#include "planner/step_replay.h"

namespace accelera::planner {

/// Choices of which none takes both less memory and less time than another.
class Frontier {
  public:
    /// Peaks that differ by less than `least_step` bytes count as one.
    explicit Frontier(int64_t least_step) : least_step_(least_step) {}

    /// Whether no choice is as good.
    bool lacks(int64_t peak, double seconds) const;
    void offer(int64_t peak, double seconds, const std::vector<GapFate>& fates);
    /// By rising peak, without those that save less than some seconds beside one of lower peak.
    std::vector<StepChoice> choices(double least_seconds) const;
    /// The one of least peak that was not asked for yet; null if there is none.
    const StepChoice* next();

  private:
    struct Entry {
        StepChoice choice;
        bool asked = false;
    };
    int64_t key_of(int64_t peak) const { return (peak + least_step_ - 1) / least_step_; }

    const int64_t least_step_;
    std::map<int64_t, Entry> by_peak_;
};

/// Search for choices, of which whatever a replay tries on the way may be one.
class StepSearch {
  public:
    StepSearch(const StepGraph& graph, const StepPrices& prices, const std::vector<Gap>& gaps);

    /// 1. Values leave the peak of the free step, one after the other.
    /// 2. From all values in the file, below which no plan comes, as many as possible stay or run again.
    /// 3. The first again, from steps that keep what lies between blocks of operations, and no more.
    /// 4. In short steps, single fates change in all choices found so far, in tiny ones pairs of them.
    Frontier run();

  private:
    static constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();
    static constexpr size_t n_fates = 5;
    static constexpr int32_t ladder = 8;           ///< peaks on the way up from the floor
    static constexpr int32_t every = 16;           ///< moves after which earlier ones are reconsidered
    static constexpr size_t long_step = 4000;      ///< gaps of a step of which not all is tried
    static constexpr int64_t short_work = 30'000;  ///< gaps times operations of one that is searched further
    static constexpr int64_t tiny_work = 1000;     ///< of one of which pairs of fates change, and tops count

    /// A fate of a gap, as it may be tried.
    struct Move {
        int32_t gap;
        GapFate fate;
    };

    void start_from(std::vector<GapFate> fates);
    /// Seconds of the present fates with one changed; `impossible` also where the peak passes a limit.
    double try_move(Move move, int64_t most_bytes = no_limit);
    /// Fates just replayed, for the frontier.
    void offer(double seconds);
    void make(Move move);

    void descend();
    bool move_one();
    Move cheapest();
    std::vector<Move> candidates() const;
    bool is_candidate(Move move) const;
    bool is_possible(Move move) const;
    double stale(Move move) const;
    /// The seconds per byte of a move, which is kept.
    double score_of(Move move);
    double computed_score(Move move);
    /// What a move takes from the peak.
    double freed_bytes(Move move) const;
    void move_at_once();
    /// Single moves from the choices found, and from those that these lead to, as far as work goes.
    void polish();
    /// So many fates change, one after the other.
    void change(int count);

    /// What the present fates have values do that need not, under a peak: the largest first, they stay, or
    /// leave in a cheaper way.
    void reconsider(int64_t most_bytes);
    void reconsider_one(int32_t gap, int64_t most_bytes);
    void climb(int64_t upper);
    std::vector<GapFate> blocks(int32_t count) const;
    std::vector<int32_t> borders(int32_t count) const;

    int64_t work() const { return int64_t(gaps_.size() * graph_.seconds.size()); }
    size_t slot(Move move) const { return at(move.gap) * n_fates + size_t(move.fate); }
    int64_t nbytes(int32_t gap) const { return block_bytes_of(graph_.nbytes[at(gaps_[at(gap)].value)]); }

    const StepGraph& graph_;
    const std::vector<Gap>& gaps_;
    StepReplay replay_;
    std::vector<GapFate> fates_;
    std::vector<double> scores_;    ///< seconds per byte, as last found, by slot; of a long step: none
    std::vector<int64_t> refused_;  ///< rounds in which moves raised the peak, by slot; of a long step: none
    std::vector<uint8_t> can_run_again_;  ///< by gap
    std::vector<int32_t> last_read_;      ///< of values before the free peak
    double seconds_ = 0;
    int64_t peak_ = 0, round_ = 0, tries_left_ = 0;
    int32_t peak_at_ = 0, middle_ = 0;
    Frontier frontier_;
};

}  // namespace accelera::planner
