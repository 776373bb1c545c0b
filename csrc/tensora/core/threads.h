#pragma once

#include <cstdint>
#include <type_traits>

namespace accelera::tensora {

/// Threads that work on one operation, the caller's among them.
int thread_count();
void set_thread_count(int n);

using Piece = void (*)(void* context, int64_t begin, int64_t end);
/// Call `piece` for ranges that together are [0, n), each at least `grain` long, on the pool's threads.
/// The caller helps, and while it waits asks whether it was interrupted. Called from within a piece, or while
/// another thread uses the pool, all runs in the caller. The first exception of a piece is raised here.
void parallel_ranges(int64_t n, int64_t grain, Piece piece, void* context);

template <typename Function>
void parallel_for(int64_t n, int64_t grain, Function&& function) {
    if (n <= grain) {
        if (n > 0) function(int64_t(0), n);
        return;
    }
    using Body = std::remove_reference_t<Function>;
    parallel_ranges(
        n, grain,
        [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&function)));
}

/// Run `job(context, i)` for each i below `n`, all at the same time: they may wait for one another.
void run_together(int n, void (*job)(void* context, int i), void* context);
/// Whether this thread is inside a piece.
bool inside_pool();

/// Elements below which an elementwise operation stays on one thread.
constexpr int64_t grain = 32768;

}  // namespace accelera::tensora
