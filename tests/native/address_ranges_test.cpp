// Ranges of addresses of a training budget's arena, against a map of its granules.
#include <map>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "tensora/base/arena.h"

using namespace accelera::tensora;

namespace {

constexpr int64_t granule = 64;

/// Which granules are used, and the blocks.
struct Model {
    explicit Model(int64_t granules) : used(size_t(granules), false) {}

    bool is_free(int64_t place, int64_t nbytes) const {
        for (int64_t at = place; at < place + nbytes; at += granule)
            if (size_t(at / granule) >= used.size() || used[size_t(at / granule)]) return false;
        return true;
    }
    void set(int64_t place, int64_t nbytes, bool value) {
        for (int64_t at = place; at < place + nbytes; at += granule) used[size_t(at / granule)] = value;
    }
    int64_t largest_gap() const {
        int64_t best = 0, run = 0;
        for (const bool one : used) best = std::max(best, run = one ? 0 : run + granule);
        return best;
    }
    std::vector<bool> used;
    std::map<int64_t, int64_t> blocks;
};

}  // namespace

TEST_CASE("address ranges: every way of taking agrees with a map of granules") {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        const int64_t granules = random.between(1, 64);
        AddressRanges ranges(granules * granule);
        Model model(granules);
        for (int step = 0; step < 500; ++step) {
            if (!model.blocks.empty() && random.chance(2)) {
                const auto block = std::next(model.blocks.begin(),
                                             long(random.between(0, int64_t(model.blocks.size()) - 1)));
                ranges.give(block->first);
                model.set(block->first, block->second, false);
                model.blocks.erase(block);
            } else {
                const int64_t request = random.between(0, 10 * granule), nbytes = block_bytes_of(request);
                const bool fits = model.largest_gap() >= nbytes;
                int64_t place = -1;
                if (const int64_t way = random.between(0, 3); way == 3) {
                    place = random.between(0, granules - 1) * granule;
                    const bool free = model.is_free(place, nbytes);
                    REQUIRE(ranges.take_at(place, nbytes) == free);
                    if (!free) continue;
                } else {
                    place = way == 2 ? ranges.take_first(nbytes) : ranges.take(nbytes, way == 1);
                    REQUIRE((place >= 0) == fits);
                    if (!fits) continue;
                }
                REQUIRE(model.is_free(place, nbytes));
                model.set(place, nbytes, true);
                model.blocks[place] = nbytes;
            }
            int64_t used = 0;
            for (const auto& [place, nbytes] : model.blocks) used += nbytes;
            REQUIRE(ranges.used_bytes() == used);
            REQUIRE(ranges.largest_gap() == model.largest_gap());
        }
    }
}

TEST_CASE("address ranges: a reset one is empty") {
    AddressRanges ranges(640);
    CHECK(ranges.take(640) == 0);
    CHECK(ranges.take(64) == -1);
    ranges.reset(128);
    CHECK(ranges.capacity() == 128);
    CHECK(ranges.used_bytes() == 0);
    CHECK(ranges.take(64, true) == 64);
    CHECK(ranges.take(64, true) == 0);
}

TEST_CASE("mapped memory: moves of overlapping ranges keep the contents") {
    MappedMemory memory(1 << 20);
    for (int i = 0; i < 1000; ++i) memory.at(0)[i] = char(i);
    memory.move(memory.at(64), memory.at(0), 1000);
    for (int i = 0; i < 1000; ++i) REQUIRE(memory.at(64)[i] == char(i));
    memory.move(memory.at(0), memory.at(64), 1000);
    for (int i = 0; i < 1000; ++i) REQUIRE(memory.at(0)[i] == char(i));
    memory.give_back(4096, 1 << 19);
    CHECK(memory.at(8192)[0] == 0);
}
