#pragma once

#include <string>
#include <vector>

#include "simulator/hierarchy/history.h"
#include "simulator/hierarchy/producers.h"

namespace accelera::simulator {

/// Link i joins tier i, the faster one, and tier i + 1.
struct LinkSpec {
    double towards_s_per_byte = 0.0;
    double away_s_per_byte = 0.0;
    /// Cost of starting one move.
    double latency_s = 0.0;
    /// Whether both directions go on at once.
    bool duplex = true;
};

struct Machine {
    /// Bytes of every tier but the last, the home of all buffers; the fastest first.
    std::vector<int64_t> capacities;
    std::vector<LinkSpec> links;
    /// What an access that hits the first tier costs.
    double hit_s = 0.0;
};

struct ReplayOptions {
    /// How many steps are under way at once.
    size_t window = 1;
    /// Seconds of arithmetic per step; empty: none.
    Span<double> seconds;
    /// Where contents come from, if they may be made again instead of moved; else null.
    const Producers* producers = nullptr;
    /// Per access, the next read of the same contents; goes with `producers`.
    Span<Time> next_read;
    /// Where to write when everything happened; null: nowhere.
    History* history = nullptr;
};

struct Flow {
    int64_t moves = 0;
    int64_t bytes = 0;
    double busy_s = 0.0;
};

struct LinkFigures {
    Flow towards;
    Flow away;
};

struct TierFigures {
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t evictions = 0;
    int64_t evicted_bytes = 0;
    /// Of misses that read.
    int64_t fetched_bytes = 0;
    /// Of misses that write.
    int64_t created_bytes = 0;
    /// Written to the next tier.
    int64_t saved_bytes = 0;
    int64_t peak_bytes = 0;
};

struct HierarchyFigures {
    std::vector<TierFigures> tiers;
    std::vector<LinkFigures> links;
    double compute_s = 0.0;
    double stall_s = 0.0;
    /// How long writes go on after the last step.
    double tail_s = 0.0;
    int64_t oversized_steps = 0;
    /// Bytes of operands that were moved without ever being resident.
    int64_t streamed_bytes = 0;
    int64_t recomputed_steps = 0;
    double recomputed_s = 0.0;
};

/// Every tier but the last is a cache of the next, with books and a policy of its own.
/// False when no policy is called `name`; `known` has one entry per cache.
bool run_hierarchy(const std::string& name, const std::vector<policy::Knowledge>& known,
                   const PreparedTrace& trace, const Machine& machine, const ReplayOptions& options,
                   HierarchyFigures& figures);

/// The same with a policy behind virtual calls for each cache.
HierarchyFigures run_hierarchy(const std::vector<policy::AnyPolicy*>& policies, const PreparedTrace& trace,
                               const Machine& machine, const ReplayOptions& options);

}  // namespace accelera::simulator
