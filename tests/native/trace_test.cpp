// Analyses of traces against their definitions, and the scanner of pickles.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "simulator/cache.h"
#include "trace/miss_curve.h"
#include "trace/pickle_scan.h"
#include "trace/stack_distance.h"

using namespace accelera;
using trace::Id;
using trace::Kind;

namespace {

struct Columns {
    Columns(uint64_t seed, bool departures) {
        RandomNumbers random(seed);
        const int64_t buffers = random.between(1, 30);
        for (int64_t i = 0; i < buffers; ++i) size_bytes.push_back(random.between(1, seed % 2 ? 1 : 90));
        for (int i = 0; i < 600; ++i) {
            buffer.push_back(Id(random.between(0, buffers - 1)));
            const bool leaves = departures && random.chance(12);
            kinds.push_back(uint8_t(leaves ? random.between(2, 5) : random.between(0, 1)));
        }
    }
    trace::Events events() const {
        return {{buffer.data(), buffer.size()},
                {kinds.data(), kinds.size()},
                {size_bytes.data(), size_bytes.size()}};
    }
    std::vector<Id> buffer, accesses() const;
    std::vector<uint8_t> kinds;
    std::vector<int64_t> size_bytes;
};

std::vector<Id> Columns::accesses() const {
    std::vector<Id> result;
    for (size_t i = 0; i < buffer.size(); ++i)
        if (kinds[i] <= uint8_t(Kind::write)) result.push_back(buffer[i]);
    return result;
}

struct Distances {
    explicit Distances(const Columns& columns) {
        const size_t n = columns.accesses().size();
        ids.resize(n);
        bytes.resize(n);
        needed.resize(n);
        trace::measure_stack_distances(columns.events(), {ids.data(), bytes.data(), needed.data()});
    }
    std::vector<int32_t> ids;
    std::vector<int64_t> bytes, needed;
};

}  // namespace

TEST_CASE("stack distances: distinct buffers since the last use") {
    for (uint64_t seed = 0; seed < 10; ++seed) {
        CAPTURE(seed);
        const Columns columns(seed, false);
        const Distances found(columns);
        for (size_t i = 0; i < columns.buffer.size(); ++i) {
            std::set<Id> between;
            size_t j = i;
            while (j-- > 0 && columns.buffer[j] != columns.buffer[i]) between.insert(columns.buffer[j]);
            if (j == size_t(-1)) {
                REQUIRE(found.ids[i] == -1);
                REQUIRE(found.needed[i] == -1);
                continue;
            }
            int64_t nbytes = 0;
            for (const Id id : between) nbytes += columns.size_bytes[size_t(id)];
            REQUIRE(found.ids[i] == int32_t(between.size()));
            REQUIRE(found.bytes[i] == nbytes);
            REQUIRE(found.needed[i] == nbytes + columns.size_bytes[size_t(columns.buffer[i])]);
        }
    }
}

TEST_CASE("miss curve: the hits of an LRU cache of each capacity") {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        for (const bool departures : {false, true}) {
            CAPTURE(seed);
            CAPTURE(departures);
            const Columns columns(seed, departures);
            const Distances found(columns);
            const std::vector<Id> accesses = columns.accesses();
            const trace::MissCurve curve = trace::sum_up_needs(
                {accesses.data(), accesses.size()}, {found.needed.data(), found.needed.size()},
                {columns.size_bytes.data(), columns.size_bytes.size()});
            CHECK(std::is_sorted(curve.capacity_bytes.begin(), curve.capacity_bytes.end()));
            const int64_t largest = *std::max_element(columns.size_bytes.begin(), columns.size_bytes.end());
            for (int64_t capacity = largest; capacity < 3000; capacity = capacity * 3 / 2 + 1) {
                policy::Knowledge known;
                known.capacity_bytes = capacity;
                known.buffers = Id(columns.size_bytes.size());
                simulator::CacheFigures metrics;
                REQUIRE(simulator::run_cache("lru", known, columns.events(), metrics));
                const auto entry =
                    std::upper_bound(curve.capacity_bytes.begin(), curve.capacity_bytes.end(), capacity);
                const int64_t hits = entry == curve.capacity_bytes.begin()
                                         ? 0
                                         : curve.hits[size_t(entry - curve.capacity_bytes.begin()) - 1];
                CHECK(hits == metrics.hits);
            }
        }
    }
}

TEST_CASE("pickles: lengths and memo places out of proportion are found") {
    using trace::find_oversized_opcode;
    CHECK(find_oversized_opcode(std::string("\x80\x04N.", 4)) == -1);
    CHECK(find_oversized_opcode(std::string("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", 12)) == 2);
    CHECK(find_oversized_opcode(std::string("Nr\xff\xff\xff\x7f.", 7)) == 1);
    CHECK(find_oversized_opcode("Np99999999999999999999\n.") == 1);
    CHECK(find_oversized_opcode("Np0\n.") == -1);
    CHECK(find_oversized_opcode("") == -1);
    CHECK(find_oversized_opcode(std::string("X\xff", 2)) == -1);
}

TEST_CASE("pickles: any bytes are scanned without reading past their end") {
    RandomNumbers random(11);
    for (int round = 0; round < 20'000; ++round) {
        // On the heap, without a terminator, so that a sanitizer sees a read past the end.
        std::vector<char> bytes(static_cast<size_t>(random.between(0, 40)));
        for (char& byte : bytes) byte = char(random.next());
        const int64_t at = trace::find_oversized_opcode({bytes.data(), bytes.size()});
        REQUIRE(at < int64_t(bytes.size()));
    }
}
