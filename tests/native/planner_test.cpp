// Planners: blocks that meet never share bytes, peaks are what a walk over the schedule finds.
#include <algorithm>
#include <climits>
#include <map>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "planner/activation_plan.h"
#include "planner/block_layout.h"
#include "planner/step_plan.h"

using namespace accelera::planner;

namespace {

std::vector<Block> random_blocks(RandomNumbers& random, int count) {
    std::vector<Block> blocks;
    for (int i = 0; i < count; ++i) {
        const auto begins = int32_t(random.between(0, 60));
        blocks.push_back({64 * random.between(1, 40), begins, begins + int32_t(random.between(1, 20))});
    }
    return blocks;
}

int64_t live_bytes(const std::vector<Block>& blocks) {
    int64_t peak = 0;
    for (int32_t time = 0; time < 100; ++time) {
        int64_t sum = 0;
        for (const Block& block : blocks)
            if (block.begins <= time && time < block.ends) sum += block.nbytes;
        peak = std::max(peak, sum);
    }
    return peak;
}

Lists lists_of(const std::vector<std::vector<int32_t>>& rows) {
    Lists lists{{0}, {}};
    for (const auto& row : rows) {
        lists.items.insert(lists.items.end(), row.begin(), row.end());
        lists.starts.push_back(int64_t(lists.items.size()));
    }
    return lists;
}

/// A step of `layers` operations forward, each of which makes a value that its backward operation reads.
StepGraph chain(RandomNumbers& random, int layers) {
    StepGraph graph;
    std::vector<std::vector<int32_t>> reads, births;
    std::map<int32_t, int32_t> last;
    for (int t = 0; t < 2 * layers; ++t) {
        graph.seconds.push_back(1e-3 * double(random.between(1, 9)));
        graph.workspace.push_back(random.chance(4) ? 64 * random.between(1, 10) : 0);
        graph.pure.push_back(1);
        std::vector<int32_t> inputs;
        if (t > 0) inputs.push_back(t - 1);
        if (t >= layers) inputs.push_back(2 * layers - 1 - t);
        std::sort(inputs.begin(), inputs.end());
        inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
        for (const int32_t v : inputs) last[v] = t;
        reads.push_back(inputs);
        births.push_back({t});
        graph.nbytes.push_back(64 * random.between(1, 64));
        graph.born.push_back(t);
        graph.fixed.push_back(0);
        graph.packed_bytes.push_back(random.chance(5) ? graph.nbytes.back() / 8 : 0);
        graph.pack_seconds.push_back(1e-4);
    }
    for (int32_t v = 0; v < 2 * layers; ++v) graph.freed.push_back(last.count(v) ? last[v] : v);
    graph.reads = lists_of(reads);
    graph.writes = lists_of(std::vector<std::vector<int32_t>>(size_t(2 * layers)));
    graph.births = lists_of(births);
    return graph;
}

}  // namespace

TEST_CASE("block layout: blocks that meet are apart, and the top is at least the live bytes") {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        const std::vector<Block> blocks = random_blocks(random, int(random.between(0, 60)));
        std::vector<int64_t> places;
        const int64_t live = live_bytes(blocks), top = lay_out(blocks, live, places);
        REQUIRE(places.size() == blocks.size());
        CHECK(top >= live);
        int64_t highest = 0;
        for (size_t i = 0; i < blocks.size(); ++i) {
            REQUIRE(places[i] >= 0);
            highest = std::max(highest, places[i] + blocks[i].nbytes);
            for (size_t j = 0; j < i; ++j)
                if (blocks[i].meets(blocks[j]))
                    REQUIRE((places[i] + blocks[i].nbytes <= places[j] ||
                             places[j] + blocks[j].nbytes <= places[i]));
        }
        CHECK(top == highest);
    }
}

TEST_CASE("step plans: time rises as the peak falls, and the schedule has the planned peak") {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        const StepGraph graph = chain(random, int(random.between(1, 14)));
        const StepPrices prices{1e-7, 64};
        const std::vector<StepChoice> choices = plan_step(graph, prices);
        REQUIRE(!choices.empty());
        for (size_t i = 1; i < choices.size(); ++i) {
            CHECK(choices[i].seconds >= choices[i - 1].seconds);
            CHECK(choices[i].peak_bytes <= choices[i - 1].peak_bytes);
        }
        for (const StepChoice& choice : choices) {
            CHECK(added_seconds(graph, prices, choice.fates) == doctest::Approx(choice.seconds));
            for (const bool overlap : {false, true}) {
                const StepMemory memory = memory_of_step(graph, prices, choice.fates);
                const StepSchedule schedule = schedule_step(graph, prices, choice.fates, overlap);
                CHECK(schedule.live_bytes == memory.live_bytes);
                CHECK(schedule.top_bytes <= memory.top_bytes);
                CHECK(schedule.live_bytes <= schedule.top_bytes);
                for (const PlannedAction& action : schedule.actions) {
                    CHECK(action.operation >= 0);
                    CHECK(size_t(action.operation) < graph.seconds.size());
                }
            }
        }
    }
}

TEST_CASE("step plans: a value that cannot be made again is not recomputed") {
    RandomNumbers random(1);
    StepGraph graph = chain(random, 6);
    std::fill(graph.pure.begin(), graph.pure.end(), uint8_t(0));
    for (const StepChoice& choice : plan_step(graph, {1e-7, 64}))
        for (const GapFate fate : choice.fates)
            CHECK((fate != GapFate::recompute && fate != GapFate::recompute_lazy));
}

TEST_CASE("activation plans: peaks fall, times rise, the first one adds none") {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        const auto layers = int32_t(random.between(1, 12));
        Step step;
        std::vector<std::vector<int32_t>> reads, makes;
        for (int32_t i = 0; i < layers; ++i) {
            step.nbytes.push_back(random.between(100, 5000));
            step.producer.push_back(i);
            step.idle_from.push_back(i + 2);
            step.needed.push_back(2 * layers + 1 - i);
            step.ends.push_back(2 * layers + 2 - i);
            step.packable.push_back(random.chance(3));
            step.seconds.push_back(1e-3);
            step.pure.push_back(!random.chance(5));
            reads.push_back(i ? std::vector<int32_t>{i - 1} : std::vector<int32_t>{});
            makes.push_back({i});
        }
        step.base.assign(size_t(2 * layers + 4), 1000);
        step.reads = lists_of(reads);
        step.makes = lists_of(makes);
        const Prices prices{1e-7, 1e-8, 4, 0};
        const std::vector<ActivationPlan> plans = plan_activations(step, prices);
        REQUIRE(!plans.empty());
        for (size_t i = 1; i < plans.size(); ++i) {
            CHECK(plans[i].peak_bytes < plans[i - 1].peak_bytes);
            CHECK(plans[i].seconds >= plans[i - 1].seconds);
        }
        for (const ActivationPlan& plan : plans) {
            REQUIRE(plan.fates.size() == step.nbytes.size());
            for (const Recomputation& one : recomputations(step, prices, plan.fates)) {
                CHECK(plan.fates[size_t(one.value)] == Fate::Recompute);
                CHECK(std::is_sorted(one.operations.begin(), one.operations.end()));
                for (const int32_t operation : one.operations) CHECK(step.pure[size_t(operation)]);
            }
        }
    }
}
