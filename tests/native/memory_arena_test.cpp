// The arena of the engine's budget: blocks never overlap, counts are exact, the limit holds.
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "memory/arena.h"
#include "native/random.h"

using accelera::memory::Arena;

namespace {

/// Blocks that the test holds, filled with a byte of their own.
class Blocks {
  public:
    explicit Blocks(Arena& arena) : arena_(arena) {}

    bool add(void* memory, int64_t nbytes) {
        if (!memory) return false;
        const unsigned char mark = static_cast<unsigned char>(marks_++);
        std::memset(memory, mark, size_t(nbytes));
        blocks_[static_cast<char*>(memory)] = {nbytes, mark};
        return true;
    }
    void release(size_t i) {
        auto block = std::next(blocks_.begin(), long(i));
        check(block->first, block->second);
        arena_.release(block->first);
        blocks_.erase(block);
    }
    void check_all() const {
        const char* end = nullptr;
        for (const auto& [memory, block] : blocks_) {
            REQUIRE(memory >= end);
            check(memory, block);
            end = memory + block.nbytes;
        }
    }
    int64_t nbytes() const {
        int64_t sum = 0;
        for (const auto& [memory, block] : blocks_) sum += block.nbytes;
        return sum;
    }
    size_t size() const { return blocks_.size(); }

  private:
    struct Block {
        int64_t nbytes;
        unsigned char mark;
    };
    static void check(const char* memory, const Block& block) {
        REQUIRE(static_cast<unsigned char>(memory[0]) == block.mark);
        REQUIRE(static_cast<unsigned char>(memory[block.nbytes - 1]) == block.mark);
    }
    Arena& arena_;
    std::map<char*, Block> blocks_;
    unsigned marks_ = 1;
};

}  // namespace

TEST_CASE("arena: random allocations neither overlap nor exceed the limit") {
    for (uint64_t seed = 0; seed < 8; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        const int64_t limit = 1 << 20;
        Arena* const arena = Arena::create(limit, [](int64_t) { return false; });
        arena->set_keeps_pages(seed % 2 == 0);
        Blocks blocks(*arena);
        for (int step = 0; step < 600; ++step) {
            if (blocks.size() && random.chance(2)) {
                blocks.release(size_t(random.between(0, int64_t(blocks.size()) - 1)));
            } else {
                const int64_t nbytes = random.between(Arena::least_bytes, 200'000);
                void* const memory = arena->allocate(nbytes);
                if (memory) {
                    CHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
                    CHECK(Arena::of(memory) == arena);
                } else {
                    CHECK(arena->ordinary_bytes() + nbytes + Arena::page_bytes > limit);
                }
                blocks.add(memory, nbytes);
            }
            REQUIRE(arena->ordinary_bytes() <= limit);
            REQUIRE(arena->ordinary_bytes() >= blocks.nbytes());
            if (step % 50 == 0) blocks.check_all();
            if (random.chance(40)) arena->trim();
        }
        CHECK(arena->peak_bytes() <= limit);
        CHECK(arena->peak_ordinary_bytes() >= arena->ordinary_bytes());
        while (blocks.size()) blocks.release(0);
        CHECK(arena->ordinary_bytes() == 0);
        arena->trim();
        CHECK(arena->touched_bytes() == 0);
        Arena::retire(arena);
    }
}

TEST_CASE("arena: a full arena calls on_full and retries") {
    int64_t missing = 0;
    void* first = nullptr;
    Arena* arena = nullptr;
    arena = Arena::create(1 << 16, [&](int64_t nbytes) {
        missing = nbytes;
        if (!first) return false;
        arena->release(std::exchange(first, nullptr));
        return true;
    });
    first = arena->allocate(40'000);
    REQUIRE(first);
    void* const second = arena->allocate(40'000);
    CHECK(second);
    CHECK(missing > 0);
    CHECK(!first);
    CHECK(arena->allocate(60'000) == nullptr);
    arena->release(second);
    Arena::retire(arena);
}

TEST_CASE("arena: committed bytes share the limit with ordinary ones") {
    Arena* const arena = Arena::create(1 << 20, [](int64_t) { return false; });
    arena->commit(1 << 19);
    CHECK(arena->committed_bytes() == 1 << 19);
    void* const slab = arena->allocate_committed(1 << 19);
    REQUIRE(slab);
    CHECK(reinterpret_cast<uintptr_t>(slab) % Arena::page_bytes == 0);
    CHECK(arena->allocate((1 << 19) + 4096) == nullptr);
    void* const rest = arena->allocate(1 << 18);
    CHECK(rest);
    arena->release(slab);
    arena->commit(-(1 << 19));
    CHECK(arena->committed_bytes() == 0);
    arena->release(rest);
    Arena::retire(arena);
}

TEST_CASE("arena: the log names each allocation and its end") {
    Arena* const arena = Arena::create(1 << 20, [](int64_t) { return false; });
    arena->start_log();
    void* const a = arena->allocate(5000);
    void* const b = arena->allocate(7000);
    const int64_t number = arena->block_at(a);
    CHECK(arena->block_at(b) != number);
    CHECK(arena->block_at(&number) == -1);
    arena->release(a);
    CHECK(arena->log_size() == 3);
    const std::vector<Arena::Event> events = arena->take_log();
    REQUIRE(events.size() == 3);
    CHECK(events[0].block == number);
    CHECK(events[0].nbytes == -events[2].nbytes);
    CHECK(events[2].block == number);
    arena->release(b);
    Arena::retire(arena);
}

TEST_CASE("arena: blocks outlive an arena that was retired") {
    Arena* const arena = Arena::create(1 << 20, [](int64_t) { return false; });
    char* const memory = static_cast<char*>(arena->allocate(10'000));
    REQUIRE(memory);
    Arena::retire(arena);
    memory[9'999] = 7;
    CHECK(memory[9'999] == 7);
    arena->release(memory);
    CHECK(Arena::of(memory) == nullptr);
}

TEST_CASE("arena: several threads allocate and release concurrently") {
    std::atomic<int> requests{0};
    Arena* const arena = Arena::create(4 << 20, [&](int64_t) {
        ++requests;
        return false;
    });
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([&, thread] {
            RandomNumbers random{uint64_t(thread)};
            std::vector<std::pair<char*, int64_t>> blocks;
            for (int step = 0; step < 400; ++step) {
                const int64_t nbytes = random.between(1024, 300'000);
                if (char* const memory = static_cast<char*>(arena->allocate(nbytes))) {
                    memory[0] = memory[nbytes - 1] = char(thread);
                    blocks.emplace_back(memory, nbytes);
                }
                if (blocks.size() > 3 || (!blocks.empty() && random.chance(3))) {
                    const auto [memory, size] = blocks.front();
                    wrong += memory[0] != char(thread) || memory[size - 1] != char(thread);
                    arena->release(memory);
                    blocks.erase(blocks.begin());
                }
            }
            for (const auto& [memory, size] : blocks) arena->release(memory);
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(arena->ordinary_bytes() == 0);
    CHECK(arena->peak_bytes() <= 4 << 20);
    Arena::retire(arena);
}

TEST_CASE("arena: a thread's arena is the one that it entered") {
    Arena* const arena = Arena::create(1 << 20, [](int64_t) { return false; });
    CHECK(accelera::memory::enter_arena(arena) == nullptr);
    CHECK(accelera::memory::current_arena() == arena);
    std::thread([] { CHECK(accelera::memory::current_arena() == nullptr); }).join();
    CHECK(accelera::memory::enter_arena(nullptr) == arena);
    Arena::retire(arena);
}
