#include "tensora/core/memory.h"

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

#include "tensora/core/error.h"

namespace accelera::tensora {

namespace {

constexpr int64_t smallest = 64;
constexpr int n_classes = 4 * 48;
constexpr int64_t most_cached = int64_t(256) << 20;

// Four sizes between a power of two and the next: at most a fifth of a block is unused.
int class_of(int64_t nbytes) {
    const uint64_t units = uint64_t(std::max<int64_t>(nbytes, smallest) + smallest - 1) / smallest;
    if (units <= 4) return int(units) - 1;
    const int power = std::bit_width(units - 1) - 1;
    const int quarter = int((units - 1) >> (power - 2)) & 3;
    return power * 4 + quarter - 4;
}

int64_t bytes_of_class(int size_class) {
    if (size_class < 4) return smallest * (size_class + 1);
    const int power = (size_class + 4) / 4;
    const int quarter = size_class & 3;
    return smallest * ((int64_t(5 + quarter)) << (power - 2));
}

struct Allocator {
    std::mutex mutex;
    std::array<std::vector<char*>, n_classes> cached;
    MemoryStats stats;

    char* take(int size_class) {
        const int64_t nbytes = bytes_of_class(size_class);
        std::unique_lock lock(mutex);
        if (stats.limit_bytes && stats.live_bytes + nbytes > stats.limit_bytes) [[unlikely]]
            fail(Kind::memory, "tensora: ", nbytes, " bytes asked for, ", stats.live_bytes, " held, limit ",
                 stats.limit_bytes, "; the smallest limit that would do here is ", stats.live_bytes + nbytes,
                 " bytes");
        char* block = nullptr;
        auto& list = cached[size_class];
        if (!list.empty()) {
            block = list.back();
            list.pop_back();
            stats.cached_bytes -= nbytes;
            ++stats.reused;
        } else {
            block = fresh(nbytes);
        }
        stats.live_bytes += nbytes;
        stats.peak_bytes = std::max(stats.peak_bytes, stats.live_bytes);
        ++stats.allocations;
        return block;
    }

    void give(char* block, int size_class) {
        const int64_t nbytes = bytes_of_class(size_class);
        std::lock_guard lock(mutex);
        stats.live_bytes -= nbytes;
        const int64_t room =
            stats.limit_bytes ? std::max<int64_t>(stats.limit_bytes - stats.live_bytes, 0) : most_cached;
        if (stats.cached_bytes + nbytes > std::max(room, nbytes < 4096 ? nbytes : 0)) {
            std::free(block);
            return;
        }
        cached[size_class].push_back(block);
        stats.cached_bytes += nbytes;
    }

    void empty() {
        for (auto& list : cached) {
            for (char* block : list) std::free(block);
            list.clear();
        }
        stats.cached_bytes = 0;
    }

    char* fresh(int64_t nbytes) {
        char* block = static_cast<char*>(std::aligned_alloc(64, size_t(nbytes)));
        if (!block) {
            empty();
            block = static_cast<char*>(std::aligned_alloc(64, size_t(nbytes)));
        }
        if (!block)
            fail(Kind::memory, "tensora: the system has no ", nbytes, " bytes; ", stats.live_bytes,
                 " are held by tensors");
        return block;
    }
};

// Never destroyed: tensors of Python's globals die after static objects do.
Allocator& allocator() {
    static Allocator* const one = new Allocator;
    return *one;
}

struct FreeLists {
    static constexpr size_t largest = 1024;
    static constexpr size_t kept = 256;
    std::array<std::vector<void*>, largest / 64 + 1> lists;
    bool alive = true;
    ~FreeLists() {
        alive = false;
        for (auto& list : lists)
            for (void* memory : list) ::operator delete(memory);
    }
};
thread_local FreeLists free_lists;

}  // namespace

void* take_small(size_t size) {
    const size_t slot = (size + 63) / 64;
    if (slot < free_lists.lists.size() && free_lists.alive) {
        auto& list = free_lists.lists[slot];
        if (!list.empty()) {
            void* memory = list.back();
            list.pop_back();
            return memory;
        }
    }
    return ::operator new(slot * 64);
}

void give_small(void* memory, size_t size) {
    const size_t slot = (size + 63) / 64;
    if (slot < free_lists.lists.size() && free_lists.alive && free_lists.lists[slot].size() < FreeLists::kept)
        free_lists.lists[slot].push_back(memory);
    else
        ::operator delete(memory);
}

void* Storage::operator new(size_t size) { return take_small(size); }
void Storage::operator delete(void* memory, size_t size) { give_small(memory, size); }

Ref<Storage> Storage::allocate(int64_t nbytes) {
    Ref<Storage> storage(new Storage);
    storage->size_class_ = class_of(nbytes);
    storage->nbytes_ = nbytes;
    try {
        storage->data_ = allocator().take(storage->size_class_);
    } catch (...) {
        storage->size_class_ = -1;
        throw;
    }
    return storage;
}

Ref<Storage> Storage::borrow(void* data, int64_t nbytes, bool writable, std::function<void()> release) {
    Ref<Storage> storage(new Storage);
    storage->data_ = static_cast<char*>(data);
    storage->nbytes_ = nbytes;
    storage->writable_ = writable;
    storage->release_ = std::move(release);
    return storage;
}

Storage::~Storage() {
    if (size_class_ >= 0)
        allocator().give(data_, size_class_);
    else if (release_)
        release_();
}

MemoryStats memory_stats() {
    std::lock_guard lock(allocator().mutex);
    return allocator().stats;
}

void reset_peak() {
    std::lock_guard lock(allocator().mutex);
    allocator().stats.peak_bytes = allocator().stats.live_bytes;
}

void set_memory_limit(int64_t nbytes) {
    std::lock_guard lock(allocator().mutex);
    const int64_t live = allocator().stats.live_bytes;
    require(nbytes >= 0, "tensora: a limit of ", nbytes, " bytes; give a positive number, or 0 for none");
    require(nbytes == 0 || nbytes >= live, "tensora: a limit of ", nbytes, " bytes, but tensors hold ", live,
            "; give at least that much, or release some first");
    allocator().stats.limit_bytes = nbytes;
    allocator().empty();
}

void empty_cache() {
    std::lock_guard lock(allocator().mutex);
    allocator().empty();
}

}  // namespace accelera::tensora
