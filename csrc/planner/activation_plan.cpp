#include "planner/activation_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace accelera::planner {
namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();

/// Replays a step under fates.
class Replay {
  public:
    Replay(const Step& step, const Prices& prices)
        : step_(step),
          prices_(prices),
          back_at_(step.nbytes.size()),
          in_run_(step.seconds.size()),
          last_read_(step.nbytes.size()),
          visited_(step.nbytes.size()) {
        for (size_t value = 0; value < step.nbytes.size(); ++value)
            if (step.needed[value] >= 0) order_.push_back(static_cast<int32_t>(value));
        std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
            return step.needed[static_cast<size_t>(a)] < step.needed[static_cast<size_t>(b)];
        });
    }

    /// Seconds that the fates add; `impossible` when a value cannot be computed again.
    double seconds(const std::vector<Fate>& fates) { return run(fates, nullptr); }

    /// The same, and what is allocated at each time.
    double profile(const std::vector<Fate>& fates, std::vector<int64_t>& bytes) {
        changes_.assign(step_.base.size() + 1, 0);
        bytes.assign(step_.base.begin(), step_.base.end());
        const double seconds = run(fates, &bytes);
        int64_t sum = 0;
        for (size_t time = 0; time < bytes.size(); ++time) bytes[time] += (sum += changes_[time]);
        for (const auto& [time, extra] : spikes_) bytes[time] += extra;
        spikes_.clear();
        return seconds;
    }

    std::vector<Recomputation> recomputations(const std::vector<Fate>& fates) {
        std::vector<Recomputation> found;
        told_ = &found;
        run(fates, nullptr);
        told_ = nullptr;
        return found;
    }

    const std::vector<int32_t>& saved() const { return order_; }

  private:
    static size_t at(int64_t index) { return static_cast<size_t>(index); }

    double run(const std::vector<Fate>& fates, std::vector<int64_t>* bytes) {
        fates_ = &fates;
        std::fill(back_at_.begin(), back_at_.end(), -1);
        held_until_ = step_.ends;
        double seconds = 0;
        for (const int32_t value : order_) {
            const int64_t nbytes = step_.nbytes[at(value)];
            if (fates[at(value)] == Fate::Pack)
                seconds += prices_.pack_s_per_byte * static_cast<double>(nbytes);
            if (fates[at(value)] == Fate::Offload)
                seconds += prices_.offload_s_per_byte * static_cast<double>(nbytes);
        }
        for (const int32_t value : order_) {
            if (fates[at(value)] == Fate::Keep || back_at_[at(value)] >= 0) continue;
            const int64_t time = step_.needed[at(value)];
            if (fates[at(value)] == Fate::Recompute) {
                const double added = recompute(value, time, bytes != nullptr);
                if (added == impossible) return impossible;
                seconds += added;
            }
            back_at_[at(value)] = time;
        }
        if (bytes) occupy();
        return seconds;
    }

    /// Run what lies between `value` and what is there; what is made on the way and needed later stays.
    double recompute(int32_t value, int64_t time, bool notes_memory) {
        ++mark_;
        run_.clear();
        left_.assign(1, value);
        while (!left_.empty()) {
            const int32_t wanted = left_.back();
            left_.pop_back();
            if (visited_[at(wanted)] == mark_) continue;
            visited_[at(wanted)] = mark_;
            if (wanted != value && is_there(wanted, time)) {
                if (is_saved(wanted) && back_at_[at(wanted)] < 0) {
                    if ((*fates_)[at(wanted)] != Fate::Keep) back_at_[at(wanted)] = time;
                    held_until_[at(wanted)] = std::max(held_until_[at(wanted)], time + 1);
                }
                continue;
            }
            const int32_t operation = step_.producer[at(wanted)];
            if (operation < 0 || !step_.pure[at(operation)]) return impossible;
            if (in_run_[at(operation)] == mark_) continue;
            in_run_[at(operation)] = mark_;
            run_.push_back(operation);
            left_.insert(left_.end(), step_.reads.begin(operation), step_.reads.end(operation));
        }
        std::sort(run_.begin(), run_.end());
        if (told_) told_->push_back({value, run_});
        double seconds = 0;
        for (const int32_t operation : run_) {
            seconds += step_.seconds[at(operation)];
            for (auto made = step_.makes.begin(operation); made != step_.makes.end(operation); ++made)
                if (stays(*made, time)) back_at_[at(*made)] = time;
        }
        if (notes_memory) spikes_.emplace_back(at(time), temporaries(value));
        return seconds;
    }

    /// Whether a value that is made again by the way stays until it is needed.
    bool stays(int32_t value, int64_t time) const {
        return is_saved(value) && (*fates_)[at(value)] == Fate::Recompute && back_at_[at(value)] < 0 &&
               step_.ends[at(value)] > time;
    }

    /// Most bytes of values that are made only to compute `wanted`, in the run of operations just found.
    int64_t temporaries(int32_t wanted) {
        for (const int32_t operation : run_)
            for (auto read = step_.reads.begin(operation); read != step_.reads.end(operation); ++read)
                last_read_[at(*read)] = operation;
        int64_t alive = 0;
        int64_t most = 0;
        for (const int32_t operation : run_) {
            const auto is_temporary = [&](int32_t value) {
                return value != wanted && back_at_[at(value)] < 0;
            };
            for (auto made = step_.makes.begin(operation); made != step_.makes.end(operation); ++made)
                if (is_temporary(*made)) alive += step_.nbytes[at(*made)];
            most = std::max(most, alive);
            for (auto read = step_.reads.begin(operation); read != step_.reads.end(operation); ++read) {
                const int32_t producer = step_.producer[at(*read)];
                const bool made_here = producer >= 0 && in_run_[at(producer)] == mark_;
                if (made_here && last_read_[at(*read)] == operation && is_temporary(*read))
                    alive -= step_.nbytes[at(*read)];
            }
        }
        return most;
    }

    bool is_saved(int32_t value) const { return step_.needed[at(value)] >= 0; }

    /// Whether a value can be read at a time of the backward pass without being computed.
    bool is_there(int32_t value, int64_t time) const {
        if (!is_saved(value)) return step_.producer[at(value)] < 0;  // from outside
        if (back_at_[at(value)] >= 0 && held_until_[at(value)] > time) return true;
        return (*fates_)[at(value)] != Fate::Recompute;
    }

    /// Enter when values are there although the base has none of them.
    void occupy() {
        for (const int32_t value : order_) {
            const int64_t nbytes = step_.nbytes[at(value)];
            const int64_t end = held_until_[at(value)];
            const Fate fate = (*fates_)[at(value)];
            const int64_t from = fate == Fate::Keep ? step_.idle_from[at(value)] : back_at_[at(value)];
            add(from, end, nbytes);
            if (fate == Fate::Pack) add(step_.idle_from[at(value)], end, nbytes / prices_.packed_ratio);
        }
    }

    void add(int64_t from, int64_t end, int64_t nbytes) {
        if (from < 0 || from >= end) return;
        const auto last = static_cast<int64_t>(step_.base.size());
        changes_[at(std::min(from, last))] += nbytes;
        changes_[at(std::min(end, last))] -= nbytes;
    }

    const Step& step_;
    const Prices& prices_;
    const std::vector<Fate>* fates_ = nullptr;
    std::vector<int32_t> order_;       // saved values by when they are needed
    std::vector<int64_t> back_at_;     // when a value that was gone is there again
    std::vector<int64_t> held_until_;  // by nodes of the graph, or as a source
    std::vector<int64_t> changes_;
    std::vector<std::pair<size_t, int64_t>> spikes_;
    std::vector<int32_t> run_;
    std::vector<int32_t> left_;
    std::vector<int64_t> in_run_;
    std::vector<int32_t> last_read_;
    std::vector<int64_t> visited_;
    int64_t mark_ = 0;
    std::vector<Recomputation>* told_ = nullptr;
};

/// Lets values leave one after the other.
class Search {
  public:
    Search(const Step& step, const Prices& prices)
        : step_(step), prices_(prices), replay_(step, prices), fates_(step.nbytes.size(), Fate::Keep) {}

    std::vector<ActivationPlan> plans() {
        std::vector<int64_t> bytes;
        seconds_ = replay_.profile(fates_, bytes);
        note(bytes);
        scores_.assign(fates_.size(), Score{0, Fate::Keep});
        banned_.assign(fates_.size(), 0);
        for (;;) {
            const auto peak = std::max_element(bytes.begin(), bytes.end());
            const auto time = static_cast<int64_t>(peak - bytes.begin());
            const int64_t height = *peak;
            const auto chosen = cheapest(time);
            if (!chosen) {
                if (offload_replaced(time, bytes)) continue;
                offload_all();
                return std::move(found_);
            }
            const auto [value, fate] = *chosen;
            fates_[value] = fate;
            const double seconds = replay_.profile(fates_, bytes);
            if (seconds == impossible || *std::max_element(bytes.begin(), bytes.end()) > height) {
                fates_[value] = Fate::Keep;
                banned_[value] |= bit(fate);
                replay_.profile(fates_, bytes);
                continue;
            }
            seconds_ = seconds;
            note(bytes);
        }
    }

  private:
    struct Score {
        double s_per_byte;
        Fate fate;
    };

    void note(const std::vector<int64_t>& bytes) {
        const int64_t peak = *std::max_element(bytes.begin(), bytes.end());
        while (!found_.empty() && found_.back().peak_bytes >= peak && found_.back().seconds >= seconds_)
            found_.pop_back();
        if (found_.empty() || peak < found_.back().peak_bytes) found_.push_back({peak, seconds_, fates_});
    }

    static uint8_t bit(Fate fate) { return static_cast<uint8_t>(1 << static_cast<int>(fate)); }

    /// Add the plan that offloads every value, where it takes less than the last one.
    void offload_all() {
        if (prices_.offload_s_per_byte == impossible) return;
        std::vector<int64_t> bytes;
        for (const int32_t value : replay_.saved())
            if (step_.nbytes[static_cast<size_t>(value)] >= prices_.least_bytes)
                fates_[static_cast<size_t>(value)] = Fate::Offload;
        seconds_ = replay_.profile(fates_, bytes);
        note(bytes);
    }

    /// Whether `value` takes memory at `time` because it was packed, or because it is computed again.
    bool is_replaced(size_t value, int64_t time) const {
        if (fates_[value] == Fate::Pack) return step_.idle_from[value] <= time && time < step_.ends[value];
        return fates_[value] == Fate::Recompute && step_.needed[value] <= time;
    }

    /// Offload one of the values that are packed or computed again at the time of the peak, where that lowers
    /// it; return whether one was found. Those needed latest come first.
    bool offload_replaced(int64_t time, std::vector<int64_t>& bytes) {
        if (prices_.offload_s_per_byte == impossible) return false;
        const int64_t height = bytes[static_cast<size_t>(time)];
        const auto& saved = replay_.saved();
        int tries = 0;
        for (auto each = saved.rbegin(); each != saved.rend() && tries < most_tries; ++each) {
            const auto value = static_cast<size_t>(*each);
            if (!is_replaced(value, time)) continue;
            ++tries;
            const Fate before = std::exchange(fates_[value], Fate::Offload);
            const double seconds = replay_.profile(fates_, bytes);
            const int64_t peak = *std::max_element(bytes.begin(), bytes.end());
            if (seconds != impossible && peak <= height && bytes[static_cast<size_t>(time)] < height) {
                seconds_ = seconds;
                std::fill(banned_.begin(), banned_.end(), uint8_t(0));
                note(bytes);
                return true;
            }
            fates_[value] = before;
        }
        replay_.profile(fates_, bytes);
        return false;
    }

    /// The value that leaves the time of the peak at the least price; scores of before are lower bounds for
    /// most, so the promising ones are scored anew first.
    std::optional<std::pair<size_t, Fate>> cheapest(int64_t time) {
        candidates_.clear();
        for (const int32_t each : replay_.saved()) {
            const auto value = static_cast<size_t>(each);
            if (fates_[value] != Fate::Keep || step_.nbytes[value] < prices_.least_bytes) continue;
            if (step_.idle_from[value] <= time && time < step_.needed[value]) candidates_.push_back(value);
        }
        std::stable_sort(candidates_.begin(), candidates_.end(),
                         [&](size_t a, size_t b) { return scores_[a].s_per_byte < scores_[b].s_per_byte; });
        constexpr double trust = 0.7;
        std::optional<size_t> best;
        for (const size_t value : candidates_) {
            if (best && trust * scores_[value].s_per_byte >= scores_[*best].s_per_byte) break;
            scores_[value] = score(value);
            if (scores_[value].s_per_byte == impossible) continue;
            if (!best || scores_[value].s_per_byte < scores_[*best].s_per_byte) best = value;
        }
        if (!best) return std::nullopt;
        return std::make_pair(*best, scores_[*best].fate);
    }

    Score score(size_t value) {
        Score best{impossible, Fate::Keep};
        const auto nbytes = static_cast<double>(step_.nbytes[value]);
        for (const Fate fate : {Fate::Pack, Fate::Recompute, Fate::Offload}) {
            if (banned_[value] & bit(fate)) continue;
            if (fate == Fate::Pack && !step_.packable[value]) continue;
            if (fate == Fate::Offload && prices_.offload_s_per_byte == impossible) continue;
            const double saved_bytes =
                fate == Fate::Pack ? nbytes - nbytes / static_cast<double>(prices_.packed_ratio) : nbytes;
            fates_[value] = fate;
            const double price = std::max(0.0, replay_.seconds(fates_) - seconds_) / saved_bytes;
            fates_[value] = Fate::Keep;
            if (price < best.s_per_byte) best = {price, fate};
        }
        return best;
    }

    static constexpr int most_tries = 16;

    const Step& step_;
    const Prices& prices_;
    Replay replay_;
    std::vector<Fate> fates_;
    double seconds_ = 0;
    std::vector<Score> scores_;
    std::vector<uint8_t> banned_;  // fates that raised the peak, as bits
    std::vector<size_t> candidates_;
    std::vector<ActivationPlan> found_;
};

}  // namespace

std::vector<Recomputation> recomputations(const Step& step, const Prices& prices,
                                          const std::vector<Fate>& fates) {
    return Replay(step, prices).recomputations(fates);
}

std::vector<ActivationPlan> plan_activations(const Step& step, const Prices& prices) {
    return Search(step, prices).plans();
}

}  // namespace accelera::planner
