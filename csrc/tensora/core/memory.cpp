#include "tensora/core/memory.h"

#include <pthread.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "tensora/base/base.h"
#include "tensora/core/budget.h"
#include "tensora/core/capture_events.h"
#include "tensora/device/driver.h"

namespace accelera::tensora {

namespace {

constexpr int64_t smallest = 64;
constexpr int n_classes = 4 * 48;
constexpr int64_t most_addressable = int64_t(1) << 47;  // of a process on x86-64 and aarch64
constexpr int64_t most_cached = int64_t(256) << 20;

// Four sizes between a power of two and the next: at most a fifth of a block is unused.
int class_of(int64_t nbytes) {
    const uint64_t units = uint64_t(std::max<int64_t>(nbytes, smallest) + smallest - 1) / smallest;
    if (units <= 4) return int(units) - 1;
    const int power = int(std::bit_width(units - 1)) - 1;
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
            fail(Kind::memory, "[tensora] ", nbytes, " bytes asked for, ", now - nbytes, " held, limit ",
                 most, "; the smallest limit that would do here is ", now, " bytes");
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
constinit std::array<Counts, 1 + Device::most> all_counts{};
constinit Counts& counts = all_counts[0];  // of the CPU
Counts& counts_of(Device device) { return all_counts[size_t(device.index + 1)]; }
thread_local constinit Role current_role = Role::other;
thread_local constinit Device current_device{};

/// Add to a list of free memory; false where the list itself has no memory. Memory ends in destructors, which
/// cannot fail.
template <typename E>
bool keep(std::vector<E*>& list, E* memory) noexcept {
    try {
        list.push_back(memory);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

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
        if (cached_bytes + nbytes <= room && keep(cached[size_class], block))
            cached_bytes += nbytes;
        else
            std::free(block);
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
            fail(Kind::memory, "[tensora] the system has no ", nbytes, " bytes; ", counts.total() - nbytes,
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

// Registered when the library is loaded, before BLAS: handlers before a fork run in the reverse order, and
// BLAS waits there for its threads, which may need memory.
[[maybe_unused]] const Allocator& at_load = allocator();

// Outlives the lists, which objects that die with their thread may look for.
thread_local constinit bool lists_alive = true;

struct FreeLists {
    static constexpr size_t largest = 1024;
    static constexpr size_t kept = 256;
    std::array<std::vector<void*>, largest / 64 + 1> lists;
    void (*const release)(void*);

    explicit FreeLists(void (*release)(void*)) : release(release) {}
    FreeLists(const FreeLists&) = delete;
    ~FreeLists() {
        for (auto& list : lists)
            for (void* memory : list) release(memory);
    }

    void* take(size_t slot) {
        if (slot >= lists.size() || lists[slot].empty()) return nullptr;
        void* const memory = lists[slot].back();
        lists[slot].pop_back();
        return memory;
    }
    bool give(void* memory, size_t slot) {
        return slot < lists.size() && lists[slot].size() < kept && keep(lists[slot], memory);
    }
};

struct ThreadLists {
    FreeLists aligned{std::free};
    FreeLists objects{[](void* memory) { ::operator delete(memory); }};
};
// A pointer: glibc keeps less than 2 kB of static thread-local memory for all libraries that are loaded
// later.
thread_local constinit ThreadLists* thread_lists = nullptr;

ThreadLists* make_thread_lists() {
    struct Owner {
        ~Owner() {
            lists_alive = false;
            delete std::exchange(thread_lists, nullptr);
        }
    };
    static thread_local const Owner owner;
    (void)owner;
    return thread_lists = new (std::nothrow) ThreadLists;
}

/// Lists of this thread; null when its objects are being destroyed, or there is no memory for lists.
ThreadLists* lists_of_thread() {
    if (thread_lists) [[likely]]
        return thread_lists;
    return lists_alive ? make_thread_lists() : nullptr;
}

size_t slot_of(size_t size) { return (size + 63) / 64; }

}  // namespace

void* take_small(size_t size) {
    ThreadLists* const lists = lists_of_thread();
    if (void* const memory = lists ? lists->aligned.take(slot_of(size)) : nullptr) return memory;
    void* const memory = std::aligned_alloc(64, slot_of(size) * 64);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void give_small(void* memory, size_t size) {
    ThreadLists* const lists = lists_of_thread();
    if (!lists || !lists->aligned.give(memory, slot_of(size))) std::free(memory);
}

void* take_object(size_t size) {
    ThreadLists* const lists = lists_of_thread();
    if (void* const memory = lists ? lists->objects.take(slot_of(size)) : nullptr) return memory;
    return ::operator new(slot_of(size) * 64);  // any object of the slot may take it later
}

void give_object(void* memory, size_t size) {
    ThreadLists* const lists = lists_of_thread();
    if (!lists || !lists->objects.give(memory, slot_of(size))) ::operator delete(memory);
}

const char* name_of(Role role) {
    constexpr const char* names[] = {"other",      "parameter", "gradient",
                                     "activation", "optimizer", "workspace"};
    return names[int(role)];
}

std::string name_of(Device device) { return device.is_cpu() ? "cpu" : text("cuda:", int(device.index)); }

Device device_named(const std::string& name) {
    if (name == "cpu") return cpu;
    int index = 0;
    const bool numbered = name.rfind("cuda:", 0) == 0 && name.size() > 5 && name.size() < 8 &&
                          name.find_first_not_of("0123456789", 5) == std::string::npos;
    require(numbered || name == "cuda", "[tensora] no device '", name, "'; give 'cpu', 'cuda' or 'cuda:0'");
    if (numbered) index = std::stoi(name.substr(5));
    cuda::check_device(index);
    return {int8_t(index)};
}

DeviceScope::DeviceScope(Device device) : before_(current_device) { current_device = device; }
DeviceScope::~DeviceScope() { current_device = before_; }
Device DeviceScope::current() { return current_device; }

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

/// Begins the life of a block that was counted.
Ref<Storage> Storage::hold(char* data, int64_t nbytes, int16_t size_class, Role role) {
    data_ = data;
    nbytes_ = nbytes;
    size_class_ = size_class;
    role_ = role;
    counts_of(device_).found();
    record_birth(*this);
    if (thread_state.capture) [[unlikely]]
        capture_birth(*thread_state.capture, *this);
    return this;
}

Ref<Storage> Storage::allocate(int64_t nbytes) {
    if (nbytes > most_addressable) [[unlikely]]
        fail(Kind::memory, "[tensora] ", nbytes, " bytes asked for, more than a process can address");
    if (StepBudget::covers(current_device)) [[unlikely]]
        return allocate_in(*StepBudget::here(), nbytes);
    if (!current_device.is_cpu()) [[unlikely]]
        return allocate_on_device(current_device, nbytes);
    const int size_class = class_of(nbytes);
    const int64_t counted = bytes_of_class(size_class);
    const Role role = current_role;
    const bool is_small = counted <= most_behind;
    const Ref<Storage> storage(make(is_small ? counted : 0));
    counts.take(counted, role);
    char* block = reinterpret_cast<char*>(storage.get()) + header;
    if (!is_small) {
        try {
            block = allocator().take(size_class);
        } catch (...) {
            counts.give(counted, role);
            throw;
        }
    }
    return storage->hold(block, nbytes, int16_t(size_class), role);
}

namespace {
constexpr int16_t on_device = INT16_MAX;  // as size class: memory of a device's pool
constexpr int16_t in_arena = INT16_MAX - 1;
int64_t device_bytes_for(int64_t nbytes) { return (std::max<int64_t>(nbytes, 1) + 511) / 512 * 512; }
}  // namespace

char* Storage::take_on_device(Device device, int64_t counted, Role role) {
    Counts& its_counts = counts_of(device);
    its_counts.take(counted, role);
    try {
        if (char* const memory = cuda::take_memory(device.index, counted)) return memory;
        fail(Kind::device_memory, "[tensora] ", name_of(device), " has no ", counted, " bytes; tensors hold ",
             its_counts.total() - counted, " of its ", cuda::properties(device.index).memory_bytes);
    } catch (...) {
        its_counts.give(counted, role);
        throw;
    }
}

Ref<Storage> Storage::allocate_on_device(Device device, int64_t nbytes) {
    const Role role = current_role;
    const Ref<Storage> storage(make(0));
    storage->device_ = device;
    storage->at_hand_ = false;
    storage->stream_ = cuda::current_stream(device.index);
    char* const memory = take_on_device(device, device_bytes_for(nbytes), role);
    return storage->hold(memory, nbytes, on_device, role);
}

/// What another stream does with the memory comes first.
char* Storage::device_data() {
    if (device_.is_cpu())
        fail(Kind::runtime, "[tensora] a kernel for a CUDA device was given memory on the CPU");
    if (house_ && !is_here()) [[unlikely]]
        house_->budget->reach(*this);
    void* const stream = cuda::current_stream(device_.index);
    if (stream_ != stream) {
        if (stream_) cuda::order_streams(device_.index, stream_, stream);
        stream_ = stream;
    }
    return data_;
}

Ref<Storage> Storage::allocate_in(StepBudget& budget, int64_t nbytes) {
    const int64_t counted = block_bytes_of(nbytes, granule_of(budget.device()));
    const Role role = current_role;
    const Ref<Storage> storage(make(0));
    storage->nbytes_ = nbytes;
    storage->device_ = budget.device();
    if (!budget.device().is_cpu()) storage->stream_ = cuda::current_stream(budget.device().index);
    storage->house_ = std::make_unique<House>();
    storage->house_->budget = Ref<StepBudget>(&budget);
    budget.place(*storage, counted);
    storage->at_hand_ = storage->data_ && budget.device().is_cpu();
    storage->size_class_ = in_arena;
    try {
        if (storage->data_) counts_of(storage->device_).take(counted, role);
    } catch (...) {
        storage->data_ = nullptr;  // so that nothing is uncounted
        throw;
    }
    return storage->hold(storage->data_, nbytes, in_arena, role);
}

void Storage::move(char* data, bool complete) {
    const bool before = std::exchange(data_, data) != nullptr;
    at_hand_ = data && complete && device_.is_cpu();
    if (data && !device_.is_cpu()) stream_ = cuda::current_stream(device_.index);
    Counts& its_counts = counts_of(device_);
    if (before && !data) its_counts.give(block_bytes(), role_);
    if (!before && data) {
        its_counts.take(block_bytes(), role_);
        its_counts.found();
    }
}

void Storage::leave_arena(const std::function<void(char*)>& fill) {
    const bool on_cpu = device_.is_cpu();
    const int size_class = on_cpu ? class_of(nbytes_) : on_device;
    const int64_t counted = on_cpu ? bytes_of_class(size_class) : device_bytes_for(nbytes_);
    char* data = nullptr;
    if (on_cpu) {
        counts.take(counted, role_);
    } else {
        data = take_on_device(device_, counted, role_);
    }
    try {
        if (on_cpu) data = allocator().take(size_class);
        fill(data);
    } catch (...) {
        if (!on_cpu)
            cuda::give_memory(device_.index, data, cuda::current_stream(device_.index));
        else if (data)
            allocator().give(data, size_class);
        counts_of(device_).give(counted, role_);
        throw;
    }
    counts_of(device_).found();
    data_ = data;
    size_class_ = int16_t(size_class);
    at_hand_ = on_cpu;
    if (!on_cpu) stream_ = cuda::current_stream(device_.index);
    house_.reset();
}

char* Storage::reach_data() const {
    if (house_ && device_.is_cpu()) {
        house_->budget->reach(const_cast<Storage&>(*this));
        return house_ && house_->small ? house_->small.get() : data_;
    }
    if (device_.is_cpu()) StepBudget::refuse_withheld();
    fail(Kind::type, "[tensora] the elements of a tensor on ", name_of(device_),
         " are asked for on the CPU; copy it there with .to('cpu')");
}

int64_t Storage::block_bytes() const {
    if (size_class_ == on_device) return device_bytes_for(nbytes_);
    if (size_class_ == in_arena) return block_bytes_of(nbytes_, granule_of(device_));
    return size_class_ < 0 ? nbytes_ : bytes_of_class(size_class_);
}

Ref<Storage> Storage::borrow(void* data, int64_t nbytes, bool writable, std::function<void()> release,
                             Device device) {
    const Ref<Storage> storage(make(0));
    storage->data_ = static_cast<char*>(data);
    storage->nbytes_ = nbytes;
    storage->writable_ = writable;
    storage->device_ = device;
    storage->at_hand_ = device.is_cpu();
    storage->release_ = std::move(release);
    return storage;
}

Storage::~Storage() {
    record_end(*this);
    if (size_class_ == on_device) {
        counts_of(device_).give(block_bytes(), role_);
        cuda::give_memory(device_.index, data_, stream_);
    } else if (house_) {
        if (data_ && size_class_ == in_arena) counts_of(device_).give(block_bytes(), role_);
        house_->budget->ended(*this);
    } else if (size_class_ >= 0) {
        counts.give(bytes_of_class(size_class_), role_);
        if (behind_ == header) allocator().give(data_, size_class_);
    } else if (release_) {
        if (stream_)  // its owner does not know of our stream
            cuda::release_after(device_.index, stream_, release_);
        else
            release_();
    }
}

void Storage::set_role(Role role) {
    if (size_class_ < 0 || role == role_) return;
    if (house_ && !data_) {
        role_ = role;
        return;
    }
    counts_of(device_).live[int(role)].fetch_add(block_bytes(), std::memory_order_relaxed);
    counts_of(device_).give(block_bytes(), role_);
    role_ = role;
    record_role(*this);
}

MemoryStats memory_stats(Device device) {
    const Counts& its_counts = counts_of(device);
    MemoryStats stats;
    stats.live_bytes = its_counts.total();
    stats.peak_bytes = std::max(its_counts.peak.load(), stats.live_bytes);
    stats.limit_bytes = its_counts.limit;
    for (int i = 0; i < n_roles; ++i) {
        stats.live_by_role[i] = its_counts.live[i];
        stats.peak_by_role[i] = its_counts.at_peak[i];
    }
    if (!device.is_cpu()) {
        stats.cached_bytes = cuda::free_bytes(device.index).in_pool;
        return stats;
    }
    const std::lock_guard lock(allocator().mutex);
    stats.cached_bytes = allocator().cached_bytes;
    stats.allocations = allocator().allocations;
    stats.reused = allocator().reused;
    return stats;
}

int64_t bytes_of_block(int64_t nbytes) { return bytes_of_class(class_of(nbytes)); }

PeakGauge::PeakGauge() : before_(counts.total()), peak_before_(counts.peak.exchange(before_)) {}

PeakGauge::~PeakGauge() {
    if (counts.peak.load() < peak_before_) counts.peak.store(peak_before_);
}

int64_t PeakGauge::nbytes() const { return counts.peak.load() - before_; }

void reset_peak(Device device) { counts_of(device).note_peak(counts_of(device).total()); }

void set_memory_limit(int64_t nbytes, Device device) {
    const int64_t live = counts_of(device).total();
    require(nbytes >= 0, "[tensora] a limit of ", nbytes, " bytes; give a positive number, or 0 for none");
    require(nbytes == 0 || nbytes >= live, "[tensora] a limit of ", nbytes, " bytes, but tensors hold ", live,
            "; give at least that much, or release some first");
    counts_of(device).limit = nbytes;
    // A device would have to finish all its work first.
    const bool trims = device.is_cpu() || (nbytes && live + cuda::free_bytes(device.index).in_pool > nbytes);
    if (trims) empty_cache(device);
}

void empty_cache(Device device) {
    if (!device.is_cpu()) return cuda::trim_pool(device.index);
    const std::lock_guard lock(allocator().mutex);
    allocator().empty();
}

}  // namespace accelera::tensora
