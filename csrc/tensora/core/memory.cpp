#include "tensora/core/memory.h"

#include <pthread.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

#include "tensora/core/error.h"
#include "tensora/core/recorder.h"

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

/// Bytes that are held, by role. Blocks are counted without a lock; of two threads that exceed the limit at
/// the same moment both may be refused, none is let through.
struct Counts {
    std::array<std::atomic<int64_t>, n_roles> live{};
    std::atomic<int64_t> peak{0};
    std::atomic<int64_t> limit{0};
    std::array<std::atomic<int64_t>, n_roles> at_peak{};

    int64_t total() const {
        int64_t sum = 0;
        for (const auto& one : live) sum += one.load(std::memory_order_relaxed);
        return sum;
    }

    void take(int64_t nbytes, Role role) {
        live[int(role)].fetch_add(nbytes, std::memory_order_relaxed);
        const int64_t now = total();
        const int64_t most = limit.load(std::memory_order_relaxed);
        if (most && now > most) [[unlikely]] {
            give(nbytes, role);
            fail(Kind::memory, "tensora: ", nbytes, " bytes asked for, ", now - nbytes, " held, limit ", most,
                 "; the smallest limit that would do here is ", now, " bytes");
        }
    }

    /// After memory was found: a request that failed is no peak.
    void found() {
        const int64_t now = total();
        if (now > peak.load(std::memory_order_relaxed)) note_peak(now);
    }

    void give(int64_t nbytes, Role role) { live[int(role)].fetch_sub(nbytes, std::memory_order_relaxed); }

    void note_peak(int64_t now) {
        peak.store(now, std::memory_order_relaxed);
        for (int i = 0; i < n_roles; ++i)
            at_peak[i].store(live[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
};
constinit Counts counts;
thread_local constinit Role current_role = Role::other;

/// Free blocks by size.
struct Allocator {
    std::mutex mutex;
    std::array<std::vector<char*>, n_classes> cached;
    int64_t cached_bytes = 0, allocations = 0, reused = 0;

    char* take(int size_class) {
        const std::lock_guard lock(mutex);
        ++allocations;
        auto& list = cached[size_class];
        if (list.empty()) return fresh(bytes_of_class(size_class));
        char* const block = list.back();
        list.pop_back();
        cached_bytes -= bytes_of_class(size_class);
        ++reused;
        return block;
    }

    void give(char* block, int size_class) {
        const int64_t nbytes = bytes_of_class(size_class);
        const std::lock_guard lock(mutex);
        const int64_t limit = counts.limit.load(std::memory_order_relaxed);
        const int64_t room = limit ? std::max<int64_t>(limit - counts.total(), 0) : most_cached;
        if (cached_bytes + nbytes > room) {
            std::free(block);
            return;
        }
        cached[size_class].push_back(block);
        cached_bytes += nbytes;
    }

    void empty() {
        for (auto& list : cached) {
            for (char* block : list) std::free(block);
            list.clear();
        }
        cached_bytes = 0;
    }

    char* fresh(int64_t nbytes) {
        char* block = static_cast<char*>(std::aligned_alloc(64, size_t(nbytes)));
        if (!block) {
            empty();
            block = static_cast<char*>(std::aligned_alloc(64, size_t(nbytes)));
        }
        if (!block)
            fail(Kind::memory, "tensora: the system has no ", nbytes, " bytes; ", counts.total() - nbytes,
                 " are held by tensors");
        return block;
    }
};

// Never destroyed: tensors of Python's globals die after static objects do. A fork waits until no other
// thread is inside, since the child would wait for that one for ever.
Allocator& allocator() {
    static Allocator* const one = [] {
        auto* const made = new Allocator;
        pthread_atfork([] { allocator().mutex.lock(); }, [] { allocator().mutex.unlock(); },
                       [] { allocator().mutex.unlock(); });
        return made;
    }();
    return *one;
}

// Outlives the lists, which objects that die with their thread may look for.
thread_local constinit bool lists_alive = true;

struct FreeLists {
    static constexpr size_t largest = 1024;
    static constexpr size_t kept = 256;
    std::array<std::vector<void*>, largest / 64 + 1> lists;
    ~FreeLists() {
        lists_alive = false;
        for (auto& list : lists)
            for (void* memory : list) std::free(memory);  // as the global delete does
    }

    void* take(size_t slot) {
        if (slot >= lists.size() || !lists_alive || lists[slot].empty()) return nullptr;
        void* const memory = lists[slot].back();
        lists[slot].pop_back();
        return memory;
    }
    bool give(void* memory, size_t slot) {
        if (slot >= lists.size() || !lists_alive || lists[slot].size() >= kept) return false;
        lists[slot].push_back(memory);
        return true;
    }
};
thread_local FreeLists aligned_lists, object_lists;

size_t slot_of(size_t size) { return (size + 63) / 64; }

}  // namespace

void* take_small(size_t size) {
    if (void* const memory = aligned_lists.take(slot_of(size))) return memory;
    void* const memory = std::aligned_alloc(64, slot_of(size) * 64);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void give_small(void* memory, size_t size) {
    if (!aligned_lists.give(memory, slot_of(size))) std::free(memory);
}

void* take_object(size_t size) {
    if (void* const memory = object_lists.take(slot_of(size))) return memory;
    return ::operator new(size);
}

void give_object(void* memory, size_t size) {
    if (!object_lists.give(memory, slot_of(size))) ::operator delete(memory);
}

const char* name_of(Role role) {
    constexpr const char* names[] = {"other",      "parameter", "gradient",
                                     "activation", "optimizer", "workspace"};
    return names[int(role)];
}

RoleScope::RoleScope(Role role) : before_(current_role) { current_role = role; }
RoleScope::~RoleScope() { current_role = before_; }
Role RoleScope::current() { return current_role; }

namespace {
constexpr int64_t header = (sizeof(Storage) + smallest - 1) / smallest * smallest;
constexpr int64_t most_behind = int64_t(FreeLists::largest) - header;
}  // namespace

Storage* Storage::make(int64_t nbytes_behind) {
    const int64_t nbytes = header + nbytes_behind;
    Storage* const storage = new (take_small(size_t(nbytes))) Storage;
    storage->behind_ = nbytes;
    return storage;
}

void Storage::operator delete(Storage* storage, std::destroying_delete_t) {
    const auto nbytes = size_t(storage->behind_);
    storage->~Storage();
    give_small(storage, nbytes);
}

Ref<Storage> Storage::allocate(int64_t nbytes) {
    const int size_class = class_of(nbytes);
    const int64_t counted = bytes_of_class(size_class);
    const Role role = current_role;
    counts.take(counted, role);
    if (counted <= most_behind) {
        Storage* const storage = make(counted);
        storage->data_ = reinterpret_cast<char*>(storage) + header;
        storage->nbytes_ = nbytes;
        storage->size_class_ = int16_t(size_class);
        storage->role_ = role;
        counts.found();
        record_birth(*storage);
        return storage;
    }
    char* block = nullptr;
    try {
        block = allocator().take(size_class);
    } catch (...) {
        counts.give(counted, role);
        throw;
    }
    Storage* const storage = make(0);
    storage->data_ = block;
    storage->nbytes_ = nbytes;
    storage->size_class_ = int16_t(size_class);
    storage->role_ = role;
    counts.found();
    record_birth(*storage);
    return storage;
}

int64_t Storage::block_bytes() const { return size_class_ < 0 ? nbytes_ : bytes_of_class(size_class_); }

Ref<Storage> Storage::borrow(void* data, int64_t nbytes, bool writable, std::function<void()> release) {
    const Ref<Storage> storage(make(0));
    storage->data_ = static_cast<char*>(data);
    storage->nbytes_ = nbytes;
    storage->writable_ = writable;
    storage->release_ = std::move(release);
    return storage;
}

Storage::~Storage() {
    record_end(*this);
    if (size_class_ >= 0) {
        counts.give(bytes_of_class(size_class_), role_);
        if (behind_ == header) allocator().give(data_, size_class_);
    } else if (release_) {
        release_();
    }
}

void Storage::set_role(Role role) {
    if (size_class_ < 0 || role == role_) return;
    counts.live[int(role)].fetch_add(bytes_of_class(size_class_), std::memory_order_relaxed);
    counts.give(bytes_of_class(size_class_), role_);
    role_ = role;
    record_role(*this);
}

MemoryStats memory_stats() {
    MemoryStats stats;
    stats.live_bytes = counts.total();
    stats.peak_bytes = std::max(counts.peak.load(), stats.live_bytes);
    stats.limit_bytes = counts.limit;
    for (int i = 0; i < n_roles; ++i) {
        stats.live_by_role[i] = counts.live[i];
        stats.peak_by_role[i] = counts.at_peak[i];
    }
    const std::lock_guard lock(allocator().mutex);
    stats.cached_bytes = allocator().cached_bytes;
    stats.allocations = allocator().allocations;
    stats.reused = allocator().reused;
    return stats;
}

void reset_peak() { counts.note_peak(counts.total()); }

void set_memory_limit(int64_t nbytes) {
    const int64_t live = counts.total();
    require(nbytes >= 0, "tensora: a limit of ", nbytes, " bytes; give a positive number, or 0 for none");
    require(nbytes == 0 || nbytes >= live, "tensora: a limit of ", nbytes, " bytes, but tensors hold ", live,
            "; give at least that much, or release some first");
    counts.limit = nbytes;
    empty_cache();
}

void empty_cache() {
    const std::lock_guard lock(allocator().mutex);
    allocator().empty();
}

}  // namespace accelera::tensora
