#include "tensora/device/graph.h"

#include <algorithm>
#include <mutex>

#include "tensora/base/base.h"

namespace accelera::tensora::cuda {

// --- memory of steps

StepMemory::~StepMemory() { shrink(0); }

char* StepMemory::take(int64_t nbytes, bool grows) {
    if (grows) stream_ = current_stream(device_);
    Block* best = nullptr;
    for (Block& block : blocks_)
        if (block.free && block.nbytes >= nbytes && (!best || block.nbytes < best->nbytes)) best = &block;
    if (best) {
        best->free = false;
        return best->memory;
    }
    if (!grows) fail(Kind::device, "[CUDA] a captured step allocates ", nbytes, " bytes more than before");
    char* const memory = take_from_pool(device_, nbytes);
    if (memory) blocks_.push_back({memory, nbytes, false});
    return memory;
}

bool StepMemory::give(const char* memory) {
    for (Block& block : blocks_)
        if (block.memory == memory) return block.free = true;
    return false;
}

bool StepMemory::part_with_taken() {
    return std::erase_if(blocks_, [](const Block& block) { return !block.free; }) > 0;
}

int64_t StepMemory::nbytes() const {
    int64_t sum = 0;
    for (const Block& block : blocks_) sum += block.nbytes;
    return sum;
}

void StepMemory::shrink(size_t n) {
    for (; blocks_.size() > n; blocks_.pop_back()) give_to_pool(device_, blocks_.back().memory, stream_);
}

// --- what a thread asks for

namespace {
thread_local constinit Watch* current_watch = nullptr;
}

Watch::Watch(StepMemory& memory, bool captures) : memory_(memory), captures_(captures) {
    current_watch = this;
}
Watch::~Watch() {
    memory_.part_with_taken();
    current_watch = nullptr;
}
Watch* Watch::here() { return current_watch; }

void Watch::note(const char* what) {
    if (!current_watch) return;
    current_watch->other_ = true;
    if (current_watch->captures_)
        fail(Kind::device, "[CUDA] ", what, " in a step that goes to a graph, which holds launches only");
}

// --- graphs

Graph::Graph(StepMemory& memory, const std::function<void()>& give_work) : device_(memory.device()) {
    static std::mutex mutex;  // of the stream that they are captured on
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock) fail(Kind::device, "[CUDA] another thread captures a graph");
    begin_graph(device_);
    try {
        Watch watch(memory, true);
        give_work();
    } catch (...) {
        end_graph(device_, false);
        throw;
    }
    handle_ = end_graph(device_, true);
}

Graph::~Graph() {
    if (stream_) finish(device_, stream_);
    drop_graph(device_, handle_);
}

void Graph::launch() {
    stream_ = current_stream(device_);
    launch_graph(device_, handle_);
}

}  // namespace accelera::tensora::cuda
