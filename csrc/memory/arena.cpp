#include "memory/arena.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <shared_mutex>

namespace accelera::memory {

/// All arenas, for finding one by address; never destroyed, as tensors may be freed when the process ends.
struct Registry {
    std::shared_mutex mutex;
    std::vector<Arena*> arenas;

    static Registry& instance() {
        static auto& registry = *new Registry;
        return registry;
    }

    Registry() { pthread_atfork(&lock_all, &unlock_all, &unlock_all_in_child); }

    // A child that is forked while another thread allocates could never allocate itself.
    static void lock_all() {
        auto& registry = instance();
        registry.mutex.lock();
        for (auto* arena : registry.arenas) arena->mutex_.lock();
    }
    static void unlock_all() {
        auto& registry = instance();
        for (auto* arena : registry.arenas) arena->mutex_.unlock();
        registry.mutex.unlock();
    }
    // The C library knows the writer by the thread's number, which is another one in the child: unlocked
    // there, the mutex would count a reader too few, and block whoever comes next.
    static void unlock_all_in_child() {
        auto& registry = instance();
        for (auto* arena : registry.arenas) arena->mutex_.unlock();
        new (&registry.mutex) std::shared_mutex;
    }

    /// Remove `arena` if it is retired and empty.
    static void reap(Arena* arena) {
        auto& registry = instance();
        const std::lock_guard lock(registry.mutex);
        const auto found = std::find(registry.arenas.begin(), registry.arenas.end(), arena);
        if (found == registry.arenas.end()) return;
        {
            const std::lock_guard inner(arena->mutex_);
            if (!arena->retired_ || !arena->empty()) return;
        }
        registry.arenas.erase(found);
        delete arena;
    }
};

namespace {

thread_local Arena* current = nullptr;

constexpr int64_t tensor_alignment = 64;

constexpr int64_t rounded(int64_t nbytes, int64_t unit) { return (nbytes + unit - 1) / unit * unit; }

}  // namespace

Arena* current_arena() { return current; }

Arena* enter_arena(Arena* arena) { return std::exchange(current, arena); }

Arena* Arena::create(int64_t limit_bytes, OnFull on_full) {
    auto& registry = Registry::instance();
    const std::lock_guard lock(registry.mutex);
    registry.arenas.reserve(registry.arenas.size() + 1);
    registry.arenas.push_back(new Arena(limit_bytes, std::move(on_full)));
    return registry.arenas.back();
}

Arena* Arena::of(const void* memory) {
    auto& registry = Registry::instance();
    const auto* address = static_cast<const char*>(memory);
    const std::shared_lock lock(registry.mutex);
    for (auto* arena : registry.arenas)
        if (address >= arena->base_ && address < arena->base_ + arena->range_bytes_) return arena;
    return nullptr;
}

void Arena::retire(Arena* arena) {
    {
        const std::lock_guard lock(arena->mutex_);
        arena->retired_ = true;
        arena->on_full_ = nullptr;
    }
    Registry::reap(arena);
}

Arena::Arena(int64_t limit_bytes, OnFull on_full) : on_full_(std::move(on_full)), limit_(limit_bytes) {
    map_range();
    free_.reset(0, range_bytes_);
}

Arena::~Arena() { munmap(base_, static_cast<size_t>(range_bytes_)); }

// Addresses cost nothing, and with plenty of them fragmentation costs none of the limit.
void Arena::map_range() {
    constexpr int64_t least = 64 << 20;
    for (const int64_t times : {8, 4, 2}) {
        range_bytes_ = rounded(std::max(least, limit_ * times), page_bytes);
        void* mapped = mmap(nullptr, static_cast<size_t>(range_bytes_), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) continue;
        base_ = static_cast<char*>(mapped);
#ifdef MADV_NOHUGEPAGE
        madvise(mapped, static_cast<size_t>(range_bytes_), MADV_NOHUGEPAGE);
#endif
        return;
    }
    throw std::bad_alloc();
}

void* Arena::allocate(int64_t nbytes) {
    Lock lock(mutex_);
    for (bool asked = false; !retired_; asked = true) {
        const int64_t missing = ordinary_ + committed_ + nbytes - limit_;
        if (missing <= 0) {
            if (logs_) reserve_log();
            void* memory = place(nbytes, tensor_alignment, allocations_);
            if (!memory) return nullptr;
            if (logs_) log_.push_back({allocations_, nbytes});
            ++allocations_;
            ordinary_ += nbytes;
            note_peak();
            return memory;
        }
        if (asked || !on_full_) return nullptr;
        OnFull on_full = on_full_;
        ++visitors_;  // whoever makes room may let go of the arena
        lock.unlock();
        const bool made = on_full(missing);
        on_full = nullptr;  // the last copy of it asks for more than this lock
        lock.lock();
        --visitors_;
        if (!made) break;
    }
    const bool last = retired_ && empty();
    lock.unlock();
    if (last) Registry::reap(this);
    return nullptr;
}

void* Arena::allocate_committed(int64_t nbytes) {
    const Lock lock(mutex_);
    return retired_ ? nullptr : place(nbytes, page_bytes, -1);
}

void Arena::release(void* memory) noexcept {
    bool last = false;
    {
        const Lock lock(mutex_);
        const auto found = used_.find(static_cast<char*>(memory) - base_);
        if (found == used_.end()) return;
        const auto [start, block] = *found;
        used_.erase(found);
        if (block.id >= 0) {
            ordinary_ -= block.nbytes;
            if (logs_) log_.push_back({block.id, -block.nbytes});
        }
        give_range(start, rounded(block.nbytes, granule_bytes));
        last = retired_ && empty();
    }
    if (last) Registry::reap(this);
}

void Arena::commit(int64_t nbytes) {
    const Lock lock(mutex_);
    committed_ += nbytes;
    note_peak();
}

void Arena::set_limit(int64_t nbytes) {
    const Lock lock(mutex_);
    limit_ = nbytes;
    give_pages_back(touched_pages_ - limit_ / page_bytes);
}

void Arena::set_keeps_pages(bool keeps) {
    const Lock lock(mutex_);
    keeps_pages_ = keeps;
}

void Arena::trim() {
    const Lock lock(mutex_);
    give_pages_back(touched_pages_);
}

void Arena::reset_peaks() {
    const Lock lock(mutex_);
    peak_ordinary_ = ordinary_;
    peak_ = ordinary_ + committed_;
    peak_touched_pages_ = touched_pages_;
}

void Arena::start_log() {
    const Lock lock(mutex_);
    log_.clear();
    reserve_log();
    logs_ = true;
}

/// Reserve entries for one more event and for the release of every block: a release cannot fail.
void Arena::reserve_log() {
    const size_t needed = log_.size() + 2 + used_.size();
    if (log_.capacity() < needed) log_.reserve(2 * needed);
}

int64_t Arena::log_size() const {
    const Lock lock(mutex_);
    return static_cast<int64_t>(log_.size());
}

std::vector<Arena::Event> Arena::take_log() {
    const Lock lock(mutex_);
    logs_ = false;
    return std::exchange(log_, {});
}

int64_t Arena::block_at(const void* memory) const {
    const Lock lock(mutex_);
    const int64_t offset = static_cast<const char*>(memory) - base_;
    auto found = used_.upper_bound(offset);
    if (found == used_.begin()) return -1;
    --found;
    return offset < found->first + found->second.nbytes ? found->second.id : -1;
}

void* Arena::place(int64_t nbytes, int64_t alignment, int64_t id) {
    const int64_t taken = std::max(rounded(nbytes, granule_bytes), granule_bytes);
    const auto [range, start] = best_fit(taken, alignment);
    if (start < 0) return nullptr;
    const int64_t top_page = std::max(top_page_, (start + taken - 1) / page_bytes + 1);
    if (static_cast<int64_t>(touched_.size()) * 64 < top_page)
        touched_.resize(std::max(2 * touched_.size(), static_cast<size_t>(top_page + 63) / 64));
    free_.reserve(used_.size() + 1);
    used_.emplace(start, Block{nbytes, id});
    free_.take(range, start, start + taken);
    top_page_ = top_page;
    give_pages_back(touched_pages_ + untouched_pages(start, taken) - limit_ / page_bytes);
    touch(start, taken);
    return base_ + start;
}

// Ranges begin at granules; one that is larger by an alignment fits in any case.
std::pair<int64_t, int64_t> Arena::best_fit(int64_t nbytes, int64_t alignment) const {
    const auto& ranges = free_.by_size();
    for (auto range = ranges.lower_bound({nbytes, 0}); range != ranges.end(); ++range) {
        const auto [size, start] = *range;
        const int64_t aligned = rounded(start, alignment);
        if (aligned + nbytes <= start + size) return {start, aligned};
    }
    return {-1, -1};
}

void Arena::give_range(int64_t start, int64_t nbytes) {
    const auto [begin, end] = free_.give(start, start + nbytes);
    // Pages at the borders may be free only now, together with the neighbours'.
    if (!keeps_pages_) {
        const int64_t from = std::max(begin, start - page_bytes);
        give_pages_back(from, std::min(end, start + nbytes + page_bytes) - from);
    }
}

void Arena::touch(int64_t start, int64_t nbytes) {
    for (int64_t page = start / page_bytes; page <= (start + nbytes - 1) / page_bytes; ++page) {
        uint64_t& word = touched_[static_cast<size_t>(page / 64)];
        const uint64_t bit = uint64_t{1} << (page % 64);
        touched_pages_ += !(word & bit);
        word |= bit;
    }
    peak_touched_pages_ = std::max(peak_touched_pages_, touched_pages_);
}

int64_t Arena::untouched_pages(int64_t start, int64_t nbytes) const {
    int64_t count = 0;
    for (int64_t page = start / page_bytes; page <= (start + nbytes - 1) / page_bytes; ++page)
        count += !(touched_[static_cast<size_t>(page / 64)] >> (page % 64) & 1);
    return count;
}

// From the largest range on: its pages are the least likely to be needed soon.
void Arena::give_pages_back(int64_t wanted_pages) {
    const auto& ranges = free_.by_size();
    for (auto range = ranges.rbegin(); range != ranges.rend() && wanted_pages > 0; ++range)
        wanted_pages -= give_pages_back(range->second, range->first);
}

int64_t Arena::give_pages_back(int64_t start, int64_t nbytes) {
    const int64_t first = rounded(start, page_bytes) / page_bytes;
    const int64_t end = std::min((start + nbytes) / page_bytes, top_page_);
    int64_t given = 0;
    for (int64_t page = first; page < end;) {
        const auto is_touched = [&](int64_t each) {
            return touched_[static_cast<size_t>(each / 64)] >> (each % 64) & 1;
        };
        if (!is_touched(page)) {
            // A word without a touched page is skipped as a whole.
            page = page % 64 == 0 && touched_[static_cast<size_t>(page / 64)] == 0 ? page + 64 : page + 1;
            continue;
        }
        const int64_t run = page;
        for (; page < end && is_touched(page); ++page)
            touched_[static_cast<size_t>(page / 64)] &= ~(uint64_t{1} << (page % 64));
        madvise(base_ + run * page_bytes, static_cast<size_t>((page - run) * page_bytes), MADV_DONTNEED);
        given += page - run;
    }
    touched_pages_ -= given;
    return given;
}

void Arena::note_peak() {
    peak_ordinary_ = std::max(peak_ordinary_, ordinary_);
    peak_ = std::max(peak_, ordinary_ + committed_);
}

}  // namespace accelera::memory
