#include "tensora/device/budget_memory.h"

#include <algorithm>
#include <cstdlib>

#include "tensora/base/base.h"

namespace accelera::tensora::cuda {

namespace {
constexpr int chunk_bits = 44;
constexpr int64_t least_chunk = int64_t(32) << 20;
constexpr int64_t library_bytes = int64_t(64) << 20;  // cuBLAS's workspace takes half of it, and kernels
constexpr int64_t longest_part = int64_t(8) << 20;    // of a move through other memory of the device
constexpr int64_t most_parts = 64;                    // of a move without
}  // namespace

DeviceMemory::DeviceMemory(int device, int64_t capacity) : device_(device), stream_(current_stream(device)) {
    if (capacity == 0) return;
    base_ = take_memory(device, capacity);
    if (base_ && has_room_for_libraries()) return;
    if (base_) give_memory(device, base_, stream_);
    const FreeBytes free = free_bytes(device);
    fail(Kind::device_memory, "[budget] cuda:", device, " has no ", capacity,
         " bytes for the tensors of a step; ", free.on_device + free.in_pool,
         " are free, of which cuBLAS and ", "kernels take ", library_bytes,
         ". Give a smaller budget, or release memory of the device");
}

/// Without it the first product of the step would fail.
bool DeviceMemory::has_room_for_libraries() const {
    const auto has_room = [&] {
        const FreeBytes free = free_bytes(device_);
        return free.on_device + free.in_pool >= library_bytes;
    };
    if (has_room()) return true;
    cuda::finish(device_, stream_);  // memory that is being freed
    return has_room();
}

DeviceMemory::~DeviceMemory() {
    if (base_) give_memory(device_, base_, stream_);
}

void DeviceMemory::move(char* to, const char* from, int64_t nbytes) {
    const int64_t gap = std::abs(to - from);
    if (gap == 0 || gap >= nbytes) return copy_within(device_, to, from, nbytes);
    // Ranges that share bytes: the driver does not define a copy between them.
    const int64_t length = std::min(nbytes, longest_part);
    char* const part = nbytes / gap > most_parts ? take_memory(device_, length) : nullptr;
    if (!part) return move_by_parts(to, from, nbytes, gap);
    for (int64_t i = 0; i < nbytes; i += length) {
        const int64_t n = std::min(length, nbytes - i), at = to < from ? i : nbytes - i - n;
        copy_within(device_, part, from + at, n);
        copy_within(device_, to + at, part, n);
    }
    give_memory(device_, part, current_stream(device_));
}

/// Copy parts that are as long as the distance of the ranges, beginning at the end that is read first.
void DeviceMemory::move_by_parts(char* to, const char* from, int64_t nbytes, int64_t gap) {
    for (int64_t i = 0; i < nbytes; i += gap) {
        const int64_t n = std::min(gap, nbytes - i), at = to < from ? i : nbytes - i - n;
        copy_within(device_, to + at, from + at, n);
    }
}

void DeviceMemory::order(void* stream) {
    const Stream here = current_stream(device_);
    if (stream && stream != here) order_streams(device_, stream, here);
    if (stream_ != here) order_streams(device_, stream_, here);
    stream_ = here;
}

HostStore::HostStore(int device) : device_(device), stream_(make_stream(device)) {}

HostStore::~HostStore() {
    if (!chunks_.empty()) cuda::finish(device_, stream_);
    for (Chunk& chunk : chunks_) release(chunk);
}

void HostStore::release(Chunk& chunk) {
    if (chunk.pinned)
        give_host_memory(device_, chunk.memory);
    else
        std::free(chunk.memory);
    chunk.memory = nullptr;
    chunk.ranges.reset(0);
}

/// Pinned memory is not the budget's, and other processes cannot have it: chunks that a whole step did not
/// need are released. Those that it used stay, since pinning takes milliseconds and the next step is alike.
void HostStore::release_unused() {
    const auto is_idle = [](const Chunk& chunk) {
        return chunk.memory && !chunk.used && chunk.ranges.used_bytes() == 0;
    };
    if (std::any_of(chunks_.begin(), chunks_.end(), is_idle)) cuda::finish(device_, stream_);
    for (Chunk& chunk : chunks_) {
        if (is_idle(chunk)) release(chunk);
        chunk.used = chunk.ranges.used_bytes() > 0;
    }
}

/// Returns the number of the chunk; those of released ones are used again.
size_t HostStore::add_chunk(int64_t nbytes) {
    nbytes = std::max(block_bytes_of(nbytes), least_chunk);
    char* memory = take_host_memory(device_, nbytes);
    const bool pinned = memory;
    if (!memory) memory = static_cast<char*>(std::malloc(size_t(nbytes)));
    if (!memory)
        fail(Kind::memory, "[budget] the host has no ", nbytes, " bytes for what leaves cuda:", device_,
             "; give the step a larger budget, or the process more memory");
    const auto released = [](const Chunk& chunk) { return !chunk.memory; };
    const auto place = std::find_if(chunks_.begin(), chunks_.end(), released);
    Chunk& chunk = place == chunks_.end() ? chunks_.emplace_back() : *place;
    chunk.memory = memory;
    chunk.pinned = pinned;
    chunk.ranges.reset(nbytes);
    return size_t(&chunk - chunks_.data());
}

int64_t HostStore::take(int64_t nbytes) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
        const int64_t place = chunks_[i].ranges.take(nbytes);
        if (place < 0) continue;
        chunks_[i].used = true;
        return (int64_t(i) << chunk_bits) + place;
    }
    const size_t added = add_chunk(nbytes);
    chunks_[added].used = true;
    return (int64_t(added) << chunk_bits) + chunks_[added].ranges.take(nbytes);
}

char* HostStore::at(int64_t slot) const {
    return chunks_[size_t(slot >> chunk_bits)].memory + (slot & ((int64_t(1) << chunk_bits) - 1));
}

void HostStore::forget(int64_t slot) {
    chunks_[size_t(slot >> chunk_bits)].ranges.give(slot & ((int64_t(1) << chunk_bits) - 1));
}

int64_t HostStore::begin_write(const char* data, int64_t nbytes) {
    const int64_t slot = take(nbytes);
    order_streams(device_, current_stream(device_), stream_);
    begin_copy_to_host(device_, at(slot), data, nbytes, stream_);
    written_ += nbytes;
    return slot;
}

void HostStore::begin_read(int64_t slot, char* data, int64_t nbytes) {
    order_streams(device_, current_stream(device_), stream_);  // the block had other contents
    begin_copy_to_device(device_, data, at(slot), nbytes, stream_);
    coming_.insert(slot);
}

void HostStore::finish(int64_t slot) {
    order_streams(device_, stream_, current_stream(device_));
    if (coming_.erase(slot)) forget(slot);
}

/// The copy goes on; what comes after waits for it.
void HostStore::abandon(int64_t slot) {
    order_streams(device_, stream_, current_stream(device_));
    coming_.erase(slot);
    forget(slot);
}

}  // namespace accelera::tensora::cuda
