#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "common/free_ranges.h"

namespace accelera::memory {

/// Memory of one budget: blocks by best fit in one range of addresses, and a count of the pages behind them.
///
/// Two kinds of users share the limit. The pool's slabs are *committed* before they exist and allocated
/// later; ordinary tensors are allocated at once. An ordinary allocation that finds too little left asks
/// `on_full` to make room (the pool evicts), and is refused if that is not enough.
///
/// A freed block keeps its pages for the next one, so that nothing is faulted in anew; before the pages with
/// something behind them exceed the limit, those of free ranges are given back to the system. Hence resident
/// memory never exceeds the limit by more than partly used pages, however fragmented the range is.
///
/// Safe to use from several threads. Blocks may outlive their arena's owner: see `retire`.
class Arena {
  public:
    /// One allocation of an ordinary tensor, or its end (`nbytes` negative); `block` counts allocations.
    struct Event {
        int64_t block;
        int64_t nbytes;
    };
    /// Is told how many bytes are missing; returns whether it made room.
    using OnFull = std::function<bool(int64_t)>;

    /// Registered until it is retired and empty; throws std::bad_alloc when no addresses are to be had.
    static Arena* create(int64_t limit_bytes, OnFull on_full);
    /// The arena in which `memory` lies, or null.
    static Arena* of(const void* memory);
    /// Unmap as soon as no block lives; nothing is allocated any more.
    static void retire(Arena* arena);

    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// Memory for an ordinary tensor, aligned to 64 bytes; null when there is no room.
    void* allocate(int64_t nbytes);
    /// Memory that was committed, aligned to pages.
    void* allocate_committed(int64_t nbytes);
    void release(void* memory) noexcept;

    /// Count `nbytes` more (or fewer) as promised to slabs.
    void commit(int64_t nbytes);
    void set_limit(int64_t nbytes);
    /// Whether pages of freed blocks are kept for the next ones.
    void set_keeps_pages(bool keeps);
    /// Give the pages of all free ranges back to the system.
    void trim();

    int64_t limit_bytes() const { return read(limit_); }
    int64_t ordinary_bytes() const { return read(ordinary_); }
    int64_t committed_bytes() const { return read(committed_); }
    int64_t touched_bytes() const { return read(touched_pages_) * page_bytes; }
    int64_t peak_ordinary_bytes() const { return read(peak_ordinary_); }
    int64_t peak_bytes() const { return read(peak_); }
    int64_t peak_touched_bytes() const { return read(peak_touched_pages_) * page_bytes; }
    void reset_peaks();

    /// Begin a log of the ordinary allocations; the earlier one is dropped.
    void start_log();
    int64_t log_size() const;
    std::vector<Event> take_log();
    /// Number of the ordinary block that holds `memory`, or -1.
    int64_t block_at(const void* memory) const;

    static constexpr int64_t page_bytes = 4096;
    /// Smaller tensors are left to the system: their sum is small, and so are their lives.
    static constexpr int64_t least_bytes = 1024;

  private:
    struct Block {
        int64_t nbytes;
        int64_t id;  // -1: committed
    };
    using Lock = std::unique_lock<std::mutex>;

    static constexpr int64_t granule_bytes = 256;

    Arena(int64_t limit_bytes, OnFull on_full);
    ~Arena();

    int64_t read(const int64_t& field) const {
        const std::lock_guard lock(mutex_);
        return field;
    }
    void map_range();
    void* place(int64_t nbytes, int64_t alignment, int64_t id);
    /// A free range (its start) and a place in it; -1 if none is large enough.
    std::pair<int64_t, int64_t> best_fit(int64_t nbytes, int64_t alignment) const;
    void give_range(int64_t start, int64_t nbytes);
    void reserve_log();
    void touch(int64_t start, int64_t nbytes);
    int64_t untouched_pages(int64_t start, int64_t nbytes) const;
    void give_pages_back(int64_t wanted_pages);
    int64_t give_pages_back(int64_t start, int64_t nbytes);
    void note_peak();
    bool empty() const { return used_.empty() && visitors_ == 0; }

    friend struct Registry;

    mutable std::mutex mutex_;
    OnFull on_full_;
    char* base_ = nullptr;
    int64_t range_bytes_ = 0;
    int64_t limit_;
    int64_t ordinary_ = 0;
    int64_t committed_ = 0;
    int64_t peak_ordinary_ = 0;
    int64_t peak_ = 0;
    int64_t touched_pages_ = 0;
    int64_t peak_touched_pages_ = 0;
    int64_t top_page_ = 0;  // no page from here on was ever used
    int64_t allocations_ = 0;
    bool keeps_pages_ = true;
    bool logs_ = false;
    bool retired_ = false;
    int64_t visitors_ = 0;  // threads in `on_full_`, which may release memory
    FreeRanges free_{0, 0};
    std::map<int64_t, Block> used_;  // start -> block
    std::vector<uint64_t> touched_;  // a bit per page
    std::vector<Event> log_;
};

/// The arena from which this thread's ordinary tensors come, or null for the system's allocator.
Arena* current_arena();
/// Set it; returns the former one.
Arena* enter_arena(Arena* arena);

}  // namespace accelera::memory
