#include "cpu/direct_io.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

namespace accelera::io {
namespace {

/// Long runs are cut into requests of this size.
constexpr int64_t request_bytes = 1 << 20;
/// The longest staging slot; the staging buffer then has four.
constexpr int64_t longest_slot = 256 << 10;
/// A write goes direct in whole pages, so that no page is written both ways.
constexpr int64_t page = 4096;
/// Shorter runs are left to the page cache: those that are whole pages, and those with ends to patch.
constexpr int64_t shortest_paged_write = 16 << 10;
constexpr int64_t shortest_ragged_write = 64 << 10;

int64_t down(int64_t position, int64_t unit) { return position / unit * unit; }
int64_t up(int64_t position, int64_t unit) { return down(position + unit - 1, unit); }

bool worth_direct_write(int64_t offset, int64_t bytes) {
    const bool paged = offset % page == 0 && bytes % page == 0;
    return bytes >= (paged ? shortest_paged_write : shortest_ragged_write);
}

int64_t slot_size(const Geometry& geometry, int64_t alignment) {
    return std::min(longest_slot, up(geometry.piece_span() + 2 * alignment, std::max(alignment, page)));
}

}  // namespace

int64_t direct_alignment(int direct_file) {
    if (direct_file < 0 || TransferQueue::of_this_thread() == nullptr) return 0;
#ifdef STATX_DIOALIGN
    struct statx found{};
    if (statx(direct_file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 &&
        (found.stx_mask & STATX_DIOALIGN) != 0)
        return std::max(found.stx_dio_offset_align, found.stx_dio_mem_align);
#endif
    return page;
}

DirectMover::DirectMover(const Region& region, const Geometry& geometry, int64_t alignment)
    : region_(region),
      geometry_(geometry),
      alignment_(alignment),
      slot_bytes_(slot_size(geometry, alignment)),
      queue_(*TransferQueue::of_this_thread()),
      requests_(TransferQueue::depth) {
    for (Request& request : requests_) idle_.push_back(&request);
    for (int slot = 0; slot < std::min<int64_t>(TransferQueue::depth, staging_bytes / slot_bytes_); ++slot)
        idle_slots_.push_back(slot);
}

bool DirectMover::aligned(int64_t offset, const char* memory) const {
    return offset % alignment_ == 0 && reinterpret_cast<uintptr_t>(memory) % alignment_ == 0;
}

bool DirectMover::note(const Outcome& outcome) {
    if (outcome_.done) outcome_ = outcome;
    return outcome_.done;
}

bool DirectMover::read(const Block& block) {
    if (geometry_.contiguous(block))
        return read_contiguous(block.offset, block.memory, geometry_.span(block));
    return read_staged({block.offset, geometry_.span(block), block.memory, &block});
}

bool DirectMover::read_contiguous(int64_t offset, char* memory, int64_t bytes) {
    const int64_t end = offset + bytes;
    while (outcome_.done && offset < end) {
        const bool straight = aligned(offset, memory) && end - offset >= alignment_;
        const int64_t whole = down(end, alignment_);
        const int64_t border = straight ? std::min(whole, offset + request_bytes)
                               : aligned(up(offset, alignment_), memory + (up(offset, alignment_) - offset))
                                   ? up(offset + 1, alignment_)
                                   : down(offset, alignment_) + slot_bytes_;
        const Part part{offset, std::min(border, end) - offset, memory, nullptr};
        if (region_.prefer_cached && cached(region_.file, part.offset, part.bytes))
            note(read_run(region_.file, memory, part.bytes, offset));
        else if (straight)
            launch(false, part, memory, -1, offset, part.bytes);
        else
            read_staged(part);
        offset += part.bytes;
        memory += part.bytes;
    }
    return outcome_.done;
}

bool DirectMover::read_staged(const Part& part) {
    const int slot = idle_slot();
    const int64_t first = down(part.offset, alignment_);
    if (region_.prefer_cached && cached(region_.file, part.offset, part.bytes)) {
        read_cached(part, slot_memory(slot));
        idle_slots_.push_back(slot);
        return outcome_.done;
    }
    const int64_t bytes = up(part.offset + part.bytes, alignment_) - first;
    return launch(false, part, slot_memory(slot), slot, first, bytes);
}

bool DirectMover::read_cached(const Part& part, char* stage) {
    if (part.block == nullptr) return note(read_run(region_.file, part.memory, part.bytes, part.offset));
    if (!note(read_run(region_.file, stage, part.bytes, part.offset))) return false;
    scatter(geometry_, *part.block, stage);
    return true;
}

bool DirectMover::write(const Block& block) {
    const int64_t span = geometry_.span(block);
    if (geometry_.contiguous(block) && worth_direct_write(block.offset, span))
        return write_contiguous(block.offset, block.memory, span);
    drain(0);
    return note(write_block(region_.file, geometry_, block));
}

bool DirectMover::write_contiguous(int64_t offset, char* memory, int64_t bytes) {
    const int64_t first = up(offset, page), last = down(offset + bytes, page);
    note(write_run(region_.file, memory, first - offset, offset));
    note(write_run(region_.file, memory + (last - offset), offset + bytes - last, last));
    return outcome_.done && write_direct(first, memory + (first - offset), last - first);
}

bool DirectMover::write_direct(int64_t offset, char* memory, int64_t bytes) {
    const bool straight = aligned(offset, memory);
    const int64_t most = straight ? request_bytes : std::max(page, down(slot_bytes_, page));
    for (int64_t done = 0; outcome_.done && done < bytes; done += most) {
        const Part part{offset + done, std::min(most, bytes - done), memory + done, nullptr};
        const int slot = straight ? -1 : idle_slot();
        char* address = straight ? part.memory : slot_memory(slot);
        if (!straight) std::memcpy(address, part.memory, static_cast<size_t>(part.bytes));
        launch(true, part, address, slot, part.offset, part.bytes);
    }
    return outcome_.done;
}

bool DirectMover::launch(bool writing, const Part& part, char* address, int slot, int64_t offset,
                         int64_t bytes) {
    if (idle_.empty()) drain(in_flight_ - 1);
    Request& request = *idle_.back();
    idle_.pop_back();
    request = {{writing, region_.direct_file, address, bytes, offset, &request}, part, {}, address, slot};
    if (part.block != nullptr) {
        request.block = *part.block;
        request.part.block = &request.block;
    }
    ++in_flight_;
    if (!queue_.submit(request.transfer)) settle(request, -1);
    return outcome_.done;
}

void DirectMover::settle(Request& request, int64_t moved) {
    const Part& part = request.part;
    const int64_t skipped = part.offset - request.transfer.offset;
    const bool whole = moved >= skipped + part.bytes;
    if (!outcome_.done) {
        // The transfer has failed already; only the request is to be given back.
    } else if (request.transfer.writing) {
        if (!whole) note(write_run(region_.file, part.memory, part.bytes, part.offset));
    } else if (!whole) {
        read_cached(part, request.address);
    } else if (part.block != nullptr) {
        scatter(geometry_, *part.block, request.address + skipped);
    } else if (request.slot >= 0) {
        std::memcpy(part.memory, request.address + skipped, static_cast<size_t>(part.bytes));
    }
    if (request.slot >= 0) idle_slots_.push_back(request.slot);
    idle_.push_back(&request);
    --in_flight_;
}

void DirectMover::drain(size_t left) {
    while (in_flight_ > left) {
        Finished finished[TransferQueue::depth];
        const int count = queue_.wait(finished);
        for (int i = 0; i < count; ++i) settle(*static_cast<Request*>(finished[i].owner), finished[i].moved);
    }
}

int DirectMover::idle_slot() {
    while (idle_slots_.empty()) drain(in_flight_ - 1);
    const int slot = idle_slots_.back();
    idle_slots_.pop_back();
    return slot;
}

}  // namespace accelera::io
