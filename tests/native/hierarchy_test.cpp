// Replays in a memory hierarchy: with one buffer per step and two tiers they are a plain cache with a link.
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "policy/any.h"
#include "simulator/cache.h"
#include "simulator/hierarchy/replay.h"

using namespace accelera;
using namespace accelera::simulator;

namespace {

struct Reads {
    Reads(uint64_t seed, int64_t most_bytes) {
        RandomNumbers random(seed);
        const int64_t buffers = random.between(1, 40);
        for (int64_t i = 0; i < buffers; ++i) size_bytes.push_back(random.between(1, most_bytes));
        for (int i = 0; i < 1500; ++i) buffer.push_back(Id(random.between(0, buffers - 1)));
        writes.resize(buffer.size());
        for (uint8_t& kind : writes) kind = random.chance(3);
    }
    Events events() const {
        return {{buffer.data(), buffer.size()}, {}, {size_bytes.data(), size_bytes.size()}};
    }
    Events with_writes() const {
        return {{buffer.data(), buffer.size()},
                {writes.data(), writes.size()},
                {size_bytes.data(), size_bytes.size()}};
    }
    policy::Knowledge known(int64_t capacity) const {
        policy::Knowledge known;
        known.capacity_bytes = capacity;
        known.buffers = Id(size_bytes.size());
        return known;
    }
    std::vector<Id> buffer;
    std::vector<uint8_t> writes;
    std::vector<int64_t> size_bytes;
};

const LinkSpec fast_link{1e-9, 2e-9, 1e-6, true};

}  // namespace

TEST_CASE("hierarchy: two tiers have the hits of a cache, and the link carries its misses") {
    for (uint64_t seed = 0; seed < 8; ++seed)
        for (const char* name : {"lru", "fifo", "lfu", "clock", "mru", "arc"}) {
            CAPTURE(seed);
            CAPTURE(name);
            const Reads reads(seed, 50);
            const int64_t capacity = 60 + int64_t(seed) * 50;
            CacheFigures cache;
            REQUIRE(run_cache(name, reads.known(capacity), reads.events(), cache));
            const PreparedTrace trace(reads.events(), {});
            HierarchyFigures metrics;
            REQUIRE(run_hierarchy(name, {reads.known(capacity)}, trace, {{capacity}, {fast_link}, 0.0}, {},
                                  metrics));
            REQUIRE(metrics.tiers.size() >= 1);
            CHECK(metrics.tiers[0].hits == cache.hits);
            CHECK(metrics.tiers[0].misses == cache.misses);
            CHECK(metrics.links[0].towards.bytes == cache.miss_bytes);
            CHECK(metrics.links[0].away.bytes == 0);
            CHECK(metrics.tiers[0].peak_bytes <= capacity);
            const double moved =
                1e-6 * double(metrics.links[0].towards.moves) + 1e-9 * double(cache.miss_bytes);
            CHECK(metrics.links[0].towards.busy_s == doctest::Approx(moved));
        }
}

TEST_CASE("hierarchy: three tiers, writes, windows and histories keep their accounts") {
    for (uint64_t seed = 0; seed < 10; ++seed) {
        CAPTURE(seed);
        const Reads reads(seed, 50);
        const std::vector<double> seconds(reads.buffer.size(), 1e-6);
        const PreparedTrace trace(reads.with_writes(), {});
        History history;
        ReplayOptions options;
        options.window = 1 + size_t(seed % 4);
        options.seconds = {seconds.data(), seconds.size()};
        options.history = &history;
        const Machine machine{{200, 500}, {fast_link, fast_link}, 0.0};
        HierarchyFigures metrics;
        REQUIRE(run_hierarchy("lru", {reads.known(200), reads.known(500)}, trace, machine, options, metrics));
        CHECK(metrics.tiers[0].hits + metrics.tiers[0].misses == int64_t(reads.buffer.size()));
        CHECK(metrics.compute_s == doctest::Approx(1e-6 * double(reads.buffer.size())));
        CHECK(metrics.tiers[0].peak_bytes <= 200);
        CHECK(metrics.tiers[1].peak_bytes <= 500);
        int64_t towards = 0, away = 0;
        for (size_t i = 0; i < history.moves.bytes.size(); ++i)
            if (history.moves.link[i] == 0)
                (history.moves.away[i] ? away : towards) += history.moves.bytes[i];
        CHECK(towards == metrics.links[0].towards.bytes);
        CHECK(away == metrics.links[0].away.bytes);
        for (size_t i = 1; i < history.steps.begin_s.size(); ++i)
            CHECK(history.steps.begin_s[i] >= history.steps.end_s[i - 1] - 1e-12);

        std::vector<std::unique_ptr<policy::AnyPolicy>> owned;
        std::vector<policy::AnyPolicy*> policies;
        for (const int64_t capacity : {200, 500}) {
            owned.push_back(policy::make_policy("lru", reads.known(capacity)));
            policies.push_back(owned.back().get());
        }
        options.history = nullptr;
        const HierarchyFigures same = run_hierarchy(policies, trace, machine, options);
        CHECK(same.tiers[0].hits == metrics.tiers[0].hits);
        CHECK(same.stall_s == doctest::Approx(metrics.stall_s));
        CHECK(same.links[1].away.bytes == metrics.links[1].away.bytes);
    }
}

TEST_CASE("hierarchy: an unknown policy is reported") {
    const Reads reads(1, 10);
    HierarchyFigures metrics;
    CHECK(!run_hierarchy("no such policy", {reads.known(10)}, PreparedTrace(reads.events(), {}),
                         {{10}, {fast_link}, 0.0}, {}, metrics));
}
