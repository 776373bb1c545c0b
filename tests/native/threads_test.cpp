// The pool of threads: each index once, exceptions arrive, jobs that wait for one another run together.
#include "tensora/base/threads.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/parallel.h"
#include "doctest/doctest.h"

using namespace accelera::tensora;

TEST_CASE("threads: ranges cover every index once") {
    const int before = thread_count();
    for (const int count : {1, 2, 3, 8}) {
        set_thread_count(count);
        for (const int64_t n : {0, 1, 2, 7, 1000, 100'003})
            for (const int64_t min_range : {1, 64, 5000}) {
                CAPTURE(count);
                CAPTURE(n);
                CAPTURE(min_range);
                std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
                std::atomic<bool> inside{true};
                parallel_for(n, min_range, [&](int64_t begin, int64_t end) {
                    if (count > 1 && n > min_range && !inside_pool()) inside = false;
                    for (int64_t i = begin; i < end; ++i) ++visits[size_t(i)];
                });
                bool once = true;
                for (const auto& visit : visits) once &= visit == 1;
                CHECK(once);
                CHECK(inside);
                CHECK(!inside_pool());
            }
    }
    set_thread_count(before);
}

TEST_CASE("threads: the exception of a piece is raised, and the pool goes on") {
    set_thread_count(4);
    for (int round = 0; round < 20; ++round) {
        CHECK_THROWS_AS(parallel_for(1000, 1,
                                     [&](int64_t begin, int64_t end) {
                                         if (begin <= 500 && 500 < end) throw std::runtime_error("piece");
                                     }),
                        std::runtime_error);
        std::atomic<int64_t> sum{0};
        parallel_for(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
        CHECK(sum == 1000);
    }
}

TEST_CASE("threads: a piece may itself be parallel") {
    set_thread_count(4);
    std::atomic<int64_t> sum{0};
    parallel_for(64, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
            parallel_for(64, 1, [&](int64_t first, int64_t last) { sum += last - first; });
    });
    CHECK(sum == 64 * 64);
}

TEST_CASE("threads: several threads use the pool concurrently") {
    set_thread_count(3);
    std::atomic<int64_t> sum{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < 50; ++round)
                parallel_for(997, 10, [&](int64_t begin, int64_t end) { sum += end - begin; });
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(sum == 4 * 50 * 997);
}

TEST_CASE("threads: jobs that wait for one another run together") {
    for (const int count : {1, 2, 5}) {
        std::atomic<int> arrived{0};
        struct Jobs {
            std::atomic<int>& arrived;
            int count;
        } jobs{arrived, count};
        run_together(
            count,
            [](void* context, int) {
                Jobs& all = *static_cast<Jobs*>(context);
                ++all.arrived;
                while (all.arrived < all.count) std::this_thread::yield();
            },
            &jobs);
        CHECK(arrived == count);
    }
}

TEST_CASE("parallel items: each item goes to one worker") {
    for (const int count : {1, 2, 5}) {
        std::vector<std::atomic<int>> visits(500);
        std::atomic<bool> known{true};
        accelera::parallel_for(count, 500, [&](int64_t worker, int64_t item) {
            if (worker < 0 || worker >= count) known = false;
            ++visits[size_t(item)];
        });
        CHECK(known);
        for (const auto& visit : visits) CHECK(visit == 1);
    }
    CHECK(accelera::available_threads() >= 1);
}
