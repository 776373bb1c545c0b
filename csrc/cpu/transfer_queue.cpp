#include "cpu/transfer_queue.h"

#include <atomic>

namespace accelera::io {
namespace {

std::atomic<Backend> chosen{Backend::automatic};

}  // namespace

void set_backend(Backend backend) { chosen.store(backend, std::memory_order_relaxed); }

TransferQueue* TransferQueue::of_this_thread() {
    const Backend backend = chosen.load(std::memory_order_relaxed);
    if (backend == Backend::threads) return thread_queue();
    TransferQueue* queue = kernel_queue();
    return queue != nullptr || backend == Backend::kernel ? queue : thread_queue();
}

}  // namespace accelera::io
