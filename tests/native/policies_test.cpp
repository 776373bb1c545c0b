// Eviction policies: the contract of all of them, and the choices of the simple ones.
#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "policy/any.h"
#include "policy/registry.h"
#include "simulator/cache.h"

using namespace accelera;
using policy::Id;
using policy::Time;

namespace {

/// Accesses of buffers with sizes, and what policies may know of them beforehand.
struct Trace {
    Trace(uint64_t seed, Id buffers, int accesses, int64_t most_bytes) {
        RandomNumbers random(seed);
        for (Id id = 0; id < buffers; ++id) size_bytes.push_back(random.between(1, most_bytes));
        for (int i = 0; i < accesses; ++i)
            buffer.push_back(Id(random.chance(3) ? random.between(0, buffers - 1)
                                                 : random.between(0, std::max<Id>(0, buffers / 4))));
        next_use.assign(buffer.size(), policy::never);
        std::map<Id, Time> later;
        for (size_t i = buffer.size(); i-- > 0;) {
            if (const auto use = later.find(buffer[i]); use != later.end()) next_use[i] = use->second;
            later[buffer[i]] = Time(i);
            score.push_back(double(random.between(0, 9)));
        }
    }
    trace::Events events() const {
        return {{buffer.data(), buffer.size()}, {}, {size_bytes.data(), size_bytes.size()}};
    }
    policy::Knowledge known(int64_t capacity_bytes) const {
        policy::Knowledge known;
        known.capacity_bytes = capacity_bytes;
        known.buffers = Id(size_bytes.size());
        known.next_use = known.next_read = {next_use.data(), next_use.size()};
        known.score = {score.data(), score.size()};
        return known;
    }
    std::vector<Id> buffer;
    std::vector<int64_t> size_bytes;
    std::vector<Time> next_use;
    std::vector<double> score;
};

/// Hits of a cache whose victim `choose` names, given the residents from the oldest use to the latest.
template <class Choose>
int64_t hits_of(const Trace& trace, int64_t capacity_bytes, Choose choose) {
    std::list<Id> residents;
    int64_t occupied = 0, hits = 0;
    for (size_t i = 0; i < trace.buffer.size(); ++i) {
        const Id id = trace.buffer[i];
        const int64_t nbytes = trace.size_bytes[size_t(id)];
        const auto at = std::find(residents.begin(), residents.end(), id);
        if (at != residents.end()) {
            ++hits;
            residents.splice(residents.end(), residents, at);
            continue;
        }
        if (nbytes > capacity_bytes) continue;
        while (occupied + nbytes > capacity_bytes) {
            const Id victim = choose(residents, i);
            occupied -= trace.size_bytes[size_t(victim)];
            residents.remove(victim);
        }
        residents.push_back(id);
        occupied += nbytes;
    }
    return hits;
}

int64_t hits_of(const char* name, const Trace& trace, int64_t capacity_bytes) {
    simulator::CacheFigures metrics;
    REQUIRE(simulator::run_cache(name, trace.known(capacity_bytes), trace.events(), metrics));
    return metrics.hits;
}

}  // namespace

TEST_CASE("policies: the victim is resident and evictable") {
    for (const auto& [name, needs] : policy::policy_needs()) {
        CAPTURE(name);
        for (uint64_t seed = 0; seed < 6; ++seed) {
            CAPTURE(seed);
            RandomNumbers random(seed + 100);
            const Trace trace(seed, Id(random.between(1, 40)), 800, 100);
            const int64_t capacity = random.between(100, 900);
            const auto chosen = policy::make_policy(name, trace.known(capacity));
            REQUIRE(chosen);
            std::set<Id> residents;
            int64_t occupied = 0;
            const auto leave = [&](Id id) {
                residents.erase(id);
                occupied -= trace.size_bytes[size_t(id)];
            };
            for (size_t i = 0; i < trace.buffer.size(); ++i) {
                const Id id = trace.buffer[i];
                const Time time = Time(i);
                const bool write = random.chance(4);
                if (residents.count(id)) {
                    chosen->touch(id, time, write);
                } else {
                    const int64_t nbytes = trace.size_bytes[size_t(id)];
                    chosen->miss(id, nbytes, time, write);
                    while (occupied + nbytes > capacity) {
                        const Id pinned = *residents.begin();
                        const bool other = residents.size() > 1;
                        const Id victim = chosen->victim([&](Id one) { return !other || one != pinned; });
                        REQUIRE(residents.count(victim) == 1);
                        REQUIRE((!other || victim != pinned));
                        chosen->evict(victim);
                        leave(victim);
                    }
                    chosen->insert(id, nbytes, time, write);
                    residents.insert(id);
                    occupied += nbytes;
                }
                if (residents.size() > 1 && random.chance(20)) {
                    const Id gone = *residents.rbegin();
                    chosen->remove(gone);
                    leave(gone);
                }
            }
            CHECK(chosen->victim([](Id) { return false; }) == policy::none);
        }
    }
}

TEST_CASE("policies: an unknown name is no policy") {
    CHECK(policy::make_policy("no such policy", {}) == nullptr);
    simulator::CacheFigures metrics;
    CHECK(!simulator::run_cache("no such policy", {}, {}, metrics));
}

TEST_CASE("policies: LRU, MRU, FIFO, Largest and Belady choose as their definitions do") {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        const Trace trace(seed, 30, 1500, seed % 2 ? 1 : 50);
        const int64_t capacity = seed % 2 ? 7 : 300;
        const auto oldest = [](const std::list<Id>& residents, size_t) { return residents.front(); };
        CHECK(hits_of("lru", trace, capacity) == hits_of(trace, capacity, oldest));
        const auto latest = [](const std::list<Id>& residents, size_t) { return residents.back(); };
        CHECK(hits_of("mru", trace, capacity) == hits_of(trace, capacity, latest));
        const auto largest = [&](const std::list<Id>& residents, size_t) {
            return *std::max_element(residents.begin(), residents.end(), [&](Id a, Id b) {
                return trace.size_bytes[size_t(a)] < trace.size_bytes[size_t(b)];
            });
        };
        CHECK(hits_of("largest", trace, capacity) == hits_of(trace, capacity, largest));
        const auto furthest = [&](const std::list<Id>& residents, size_t now) {
            const auto next = [&](Id id) {
                return std::find(trace.buffer.begin() + long(now), trace.buffer.end(), id);
            };
            return *std::max_element(residents.begin(), residents.end(),
                                     [&](Id a, Id b) { return next(a) < next(b); });
        };
        if (seed % 2) CHECK(hits_of("belady", trace, capacity) == hits_of(trace, capacity, furthest));
    }
}

TEST_CASE("policies: no policy has more hits than Belady with buffers of one size") {
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const Trace trace(seed, 60, 4000, 1);
        for (const int64_t capacity : {1, 2, 9, 40}) {
            const int64_t best = hits_of("belady", trace, capacity);
            for (const auto& [name, needs] : policy::policy_needs()) {
                CAPTURE(name);
                CHECK(hits_of(name.c_str(), trace, capacity) <= best);
            }
        }
    }
}

TEST_CASE("cache: a policy behind virtual calls has the metrics of the inlined one") {
    const Trace trace(7, 50, 3000, 80);
    for (const auto& [name, needs] : policy::policy_needs()) {
        CAPTURE(name);
        simulator::CacheFigures inlined;
        REQUIRE(simulator::run_cache(name, trace.known(400), trace.events(), inlined));
        CHECK(inlined.hits + inlined.misses == int64_t(trace.buffer.size()));
        CHECK(inlined.peak_bytes <= 400);
        const auto chosen = policy::make_policy(name, trace.known(400));
        const simulator::CacheFigures metrics = simulator::run_cache(*chosen, 400, trace.events());
        // A policy that reserves a part of the capacity evicts earlier.
        if (name == "wtinylfu" || name == "slru" || name == "s3fifo" || name == "two_q" || name == "lirs")
            continue;
        CHECK(metrics.hits == inlined.hits);
        CHECK(metrics.evicted_bytes == inlined.evicted_bytes);
    }
}
