#include "planner/step_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/step_replay.h"
#include "planner/step_search.h"

namespace accelera::planner {

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
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    const double seconds = std::accumulate(graph.seconds.begin(), graph.seconds.end(), 0.0);
    std::vector<StepChoice> choices = StepSearch(graph, prices, gaps).run().choices(seconds / 1000);
    std::reverse(choices.begin(), choices.end());
    return choices;
}

StepMemory memory_of_step(const StepGraph& graph, const StepPrices& prices,
                          const std::vector<GapFate>& fates) {
    const std::vector<Gap> gaps = gaps_of(graph, prices.least_bytes);
    StepReplay replay(graph, prices, gaps);
    const int64_t top = replay.top(fates);
    return {top, replay.peak()};
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
