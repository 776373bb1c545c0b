#include "common/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace accelera {

int available_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void parallel_for(int threads, int64_t count, const std::function<void(int, int64_t)>& work) {
    std::atomic<int64_t> next{0};
    auto run = [&](int worker) {
        for (int64_t item = next++; item < count; item = next++) work(worker, item);
    };
    std::vector<std::thread> helpers;
    try {
        for (int worker = 1; worker < threads && worker < count; ++worker) helpers.emplace_back(run, worker);
    } catch (const std::system_error&) {
        // No more threads to be had: those that started, and this one, do all the work.
    }
    run(0);
    for (auto& helper : helpers) helper.join();
}

}  // namespace accelera
