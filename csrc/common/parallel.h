#pragma once

#include <cstdint>
#include <functional>

namespace accelera {

/// Cores this process may use.
int available_threads();

/// Call `work(worker, item)` for every item below `count`, handing the next item to whichever of the
/// `threads` workers is free. The caller is worker 0. `work` must not throw.
void parallel_for(int threads, int64_t count, const std::function<void(int, int64_t)>& work);

}  // namespace accelera
