#pragma once

#include <vector>

#include "cpu/cached_io.h"
#include "cpu/transfer_queue.h"

namespace accelera::io {

/// What O_DIRECT asks of offsets, lengths and addresses in this file; 0 when it cannot be used.
int64_t direct_alignment(int direct_file);

/// Moves blocks around the page cache, several requests on their way at once.
///
/// What does not meet the alignment goes through slots of the staging buffer. Whatever the direct path
/// does not do (refused, short, the unaligned ends of a write) is done through the page cache, which
/// also finds the error to report.
class DirectMover {
  public:
    DirectMover(const Region& region, const Geometry& geometry, int64_t alignment);
    ~DirectMover() { drain(0); }
    DirectMover(const DirectMover&) = delete;
    DirectMover& operator=(const DirectMover&) = delete;

    /// The longest span of a block that is not contiguous on both sides.
    int64_t block_limit() const { return slot_bytes_ - 2 * alignment_; }

    bool read(const Block& block);
    bool write(const Block& block);

    /// Wait for everything and tell what went wrong first.
    Outcome finish() {
        drain(0);
        return outcome_;
    }

  private:
    /// `bytes` of the file from `offset`, and where they belong: a run in memory, or a block to scatter.
    struct Part {
        int64_t offset, bytes;
        char* memory;
        const Block* block;
    };
    struct Request {
        Transfer transfer;
        Part part;
        Block block;
        char* address;
        int slot;
    };

    bool read_contiguous(int64_t offset, char* memory, int64_t bytes);
    bool read_staged(const Part& part);
    bool read_cached(const Part& part, char* stage);
    bool write_contiguous(int64_t offset, char* memory, int64_t bytes);
    bool write_direct(int64_t offset, char* memory, int64_t bytes);
    bool note(const Outcome& outcome);

    bool launch(bool writing, const Part& part, char* address, int slot, int64_t offset, int64_t bytes);
    void settle(Request& request, int64_t moved);
    void drain(size_t left);
    int idle_slot();
    char* slot_memory(int slot) const { return staging() + slot * slot_bytes_; }
    bool aligned(int64_t offset, const char* memory) const;

    const Region& region_;
    const Geometry& geometry_;
    const int64_t alignment_, slot_bytes_;
    TransferQueue& queue_;
    std::vector<Request> requests_;
    std::vector<Request*> idle_;
    std::vector<int> idle_slots_;
    size_t in_flight_ = 0;
    Outcome outcome_;
};

}  // namespace accelera::io
