#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "tensora/base/arena.h"
#include "tensora/base/base.h"

namespace accelera::tensora {

struct Call;
class Tensor;
using T = Ref<Tensor>;

/// What a block of memory is for.
enum class Role : uint8_t { other, parameter, gradient, activation, optimizer, workspace };
constexpr int n_roles = 6;
const char* name_of(Role role);

/// Where memory lies: on the CPU, or on a CUDA device.
struct Device {
    static constexpr int most = 64;  ///< CUDA devices
    int8_t index = -1;               ///< of a CUDA device; -1: the CPU
    bool is_cpu() const { return index < 0; }
    friend bool operator==(Device a, Device b) { return a.index == b.index; }
};
constexpr Device cpu{};
/// "cpu", "cuda:0" and so on.
std::string name_of(Device device);
/// The device of such a name, "cuda" being the first; raises where it does not exist.
Device device_named(const std::string& name);

/// Alignment of the blocks of a budget on a device.
inline int64_t granule_of(Device device) { return device.is_cpu() ? cpu_granule : device_granule; }

/// While it lives, this thread's new blocks lie on this device.
class DeviceScope {
  public:
    explicit DeviceScope(Device device);
    ~DeviceScope();
    static Device current();
    DeviceScope(const DeviceScope&) = delete;

  private:
    Device before_;
};

/// Bytes of tensors on a device, and the memory kept for the next ones.
struct MemoryStats {
    int64_t live_bytes = 0;    ///< held by tensors now
    int64_t peak_bytes = 0;    ///< most of it since the last reset
    int64_t cached_bytes = 0;  ///< free blocks kept for reuse
    int64_t limit_bytes = 0;   ///< 0: none
    int64_t allocations = 0;   ///< of blocks that are not small, since the process began
    int64_t reused = 0;        ///< of these, blocks from the cache
    std::array<int64_t, n_roles> live_by_role{};
    std::array<int64_t, n_roles> peak_by_role{};  ///< at the moment of the peak
};

/// While it lives, this thread's new blocks have this role.
class RoleScope {
  public:
    explicit RoleScope(Role role);
    ~RoleScope();
    static Role current();
    RoleScope(const RoleScope&) = delete;

  private:
    Role before_;
};

class Deferred;
class Storage;
class StepBudget;

/// What goes on in the background with the contents of a storage in an arena.
enum class Passage : uint8_t {
    none,
    leaving,  ///< they are being written out, and are there
    coming    ///< they are being read, and are not there yet
};

/// Contents of a storage in a step that does not fit its budget (see core/budget_shapes.cpp).
enum class Contents : uint8_t {
    computed,
    withheld,  ///< an operation that writes them did not run; readable again when the step ends
    missing    ///< the operation that makes them did not run
};

/// Where a storage is in the arena of a budget.
struct House {
    Ref<StepBudget> budget;
    int64_t place = -1;       ///< in the arena; -1: its contents are elsewhere
    int64_t slot = -1;        ///< in the spill file
    Ref<Storage> packed;      ///< its contents as bits
    int64_t last_use = 0;     ///< operation
    int32_t allocation = -1;  ///< number in the operation that goes on
    int32_t pins = 0;
    int32_t index = -1;        ///< among the arena's residents
    int16_t in_workspace = 0;  ///< 1: the caller's; from 2: that of a thread of the pool
    Passage passage = Passage::none;
    Contents contents = Contents::computed;
    std::unique_ptr<char[]> small;  ///< contents of a few bytes, made while the step had no memory left
};

/// Memory of one or more tensors: a block of the allocator, or memory of somebody else. A small block lies
/// behind the object itself.
class Storage final : public Counted {
  public:
    /// Block of at least `nbytes` on the thread's device, aligned to 64 bytes; its contents are anything.
    /// Throws Error(memory) when the limit leaves too little, before anything is allocated.
    static Ref<Storage> allocate(int64_t nbytes);
    /// Memory of another library, which `release` gives back.
    static Ref<Storage> borrow(void* data, int64_t nbytes, bool writable, std::function<void()> release,
                               Device device = cpu);
    /// Memory of `nbytes` that belongs to somebody else, and is at different places at different times.
    static Ref<Storage> movable(int64_t nbytes) {
        return borrow(nullptr, nbytes, true, [] {});
    }
    void set_data(char* data) { data_ = data; }
    ~Storage() override;

    /// The memory of a storage on the CPU.
    char* data() const {
        if (!at_hand_) [[unlikely]]
            return reach_data();
        return data_;
    }
    /// The memory of a storage on a CUDA device, for what comes next on the thread's stream.
    char* device_data();
    Device device() const { return device_; }
    /// The stream that used it last.
    void* stream() const { return stream_; }
    /// Note the stream that the contents are ready for.
    void set_stream(void* stream) { stream_ = stream; }
    int64_t nbytes() const { return nbytes_; }
    /// What it takes of the allocator's memory; of another library's memory its own size.
    int64_t block_bytes() const;
    bool writable() const { return writable_; }
    bool borrowed() const { return bool(release_); }
    Role role() const { return role_; }
    void set_role(Role role);
    /// How often an operation has written in place; what a graph has saved is compared with it.
    uint32_t version() const { return version_.load(std::memory_order_relaxed); }
    void bump() { version_.fetch_add(1, std::memory_order_relaxed); }

    /// Results that were not computed yet and read this memory.
    std::vector<Deferred*>& readers() { return readers_; }
    /// Where it stands in the record that is kept.
    struct Recorded {
        uint32_t record = 0;
        int32_t place = 0;
    };
    Recorded recorded;
    Recorded in_step;   ///< the same, of the step of a budget
    Recorded captured;  ///< the same, of a program that is captured; a place of -1: born there
    House* house() const { return house_.get(); }
    /// Whether the contents are where operations find them.
    bool is_here() const { return !house_ || house_->small || (data_ && house_->passage != Passage::coming); }
    /// Whether the contents were not computed, as the step does not fit its budget.
    bool lacks_contents() const { return house_ && house_->contents != Contents::computed; }
    /// Whether another library sees the memory, and may write to it unseen.
    bool lent() const { return lent_; }
    void set_lent() { lent_ = true; }

    static void operator delete(Storage* storage, std::destroying_delete_t);

  private:
    Storage() = default;
    static Storage* make(int64_t nbytes_behind);
    static Ref<Storage> allocate_on_device(Device device, int64_t nbytes);
    static char* take_on_device(Device device, int64_t counted, Role role);
    Ref<Storage> hold(char* data, int64_t nbytes, int16_t size_class, Role role);
    static Ref<Storage> allocate_in(StepBudget& budget, int64_t nbytes);
    char* reach_data() const;
    friend class StepBudget;
    /// The block is at `data` of the arena, with the contents in it or soon; or (null) there is none.
    void move(char* data, bool complete = true);
    /// Be an ordinary block from now on, whose contents the caller brings.
    /// Take a block of the allocator, which `fill` is called with; an exception leaves the storage as it was.
    void leave_arena(const std::function<void(char*)>& fill);

    char* data_ = nullptr;
    int64_t nbytes_ = 0;
    int64_t behind_ = 0;       ///< bytes of the object and of what lies behind it
    int16_t size_class_ = -1;  ///< of a block of the allocator
    Device device_;
    Role role_ = Role::other;
    bool at_hand_ = true;  ///< `data_` is memory of the CPU, with the contents
    bool writable_ = true;
    bool lent_ = false;
    std::vector<Deferred*> readers_;
    std::atomic<uint32_t> version_{0};
    void* stream_ = nullptr;
    std::function<void()> release_;
    std::unique_ptr<House> house_;
};

/// Measures the most bytes of the CPU held beyond those held when it began.
class PeakGauge {
  public:
    PeakGauge();
    ~PeakGauge();
    PeakGauge(const PeakGauge&) = delete;
    int64_t nbytes() const;

  private:
    int64_t before_, peak_before_;
};

/// What a block of the CPU for so many bytes takes of the allocator.
int64_t bytes_of_block(int64_t nbytes);
MemoryStats memory_stats(Device device);
void reset_peak(Device device);
/// Bytes that tensors may hold at once; 0 lifts the limit.
void set_memory_limit(int64_t nbytes, Device device);
/// Give cached memory back to the system.
void empty_cache(Device device);

/// Free list of objects of one size, per thread: small objects are made and destroyed with every operation.
void* take_small(size_t size);
void give_small(void* memory, size_t size);
/// The same for objects that may also be freed by the global delete; aligned as its memory is.
void* take_object(size_t size);
void give_object(void* memory, size_t size);

/// Gives a container memory from those lists.
template <typename E>
struct SmallAllocator {
    using value_type = E;
    SmallAllocator() = default;
    template <typename Other>
    SmallAllocator(const SmallAllocator<Other>&) {}
    E* allocate(size_t n) { return static_cast<E*>(take_small(n * sizeof(E))); }
    void deallocate(E* memory, size_t n) { give_small(static_cast<void*>(memory), n * sizeof(E)); }
    template <typename Other>
    bool operator==(const SmallAllocator<Other>&) const {
        return true;
    }
};
template <typename E>
using SmallVector = std::vector<E, SmallAllocator<E>>;

/// Scratch memory of an operation; counts against the limit as tensors do.
class Scratch {
  public:
    explicit Scratch(int64_t nbytes) {
        const RoleScope workspace(Role::workspace);
        storage_ = Storage::allocate(nbytes);
    }
    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(storage_->data());
    }

  private:
    Ref<Storage> storage_;
};

// --- records of what operations do with memory

/// Work of one operation: operations on numbers, and bytes read and written at least.
struct Cost {
    double flops = 0;
    double bytes = 0;
};

/// Columns of a trace (see accelera.trace): events, buffers and steps.
struct Record {
    std::vector<int32_t> event_buffer;
    std::vector<uint8_t> event_kind;  ///< accelera.trace.Kind
    std::vector<int32_t> event_step;
    std::vector<int64_t> buffer_nbytes;
    std::vector<Role> buffer_role;
    std::vector<std::string> buffer_name;
    std::vector<std::string> step_op;
    std::vector<double> step_flops;
    std::vector<double> step_seconds;
};

/// Begin to record what operations do with memory; raises when it is recorded already.
void begin_record();
/// The record, which ends.
Record end_record();
/// Whether a record is kept. Everything below does nothing otherwise.
bool is_recording();
/// Call a tensor's memory by this name in the record.
void name_in_record(Storage& storage, const std::string& name);

/// One operation: a step of the record. Memory allocated while it lives belongs to it, and is written by it.
class RecordedStep {
  public:
    /// All tensors that it reads or writes, and the call where it is one. There is no step without operands:
    /// a budget brings them back and pins them as one set before any of their addresses is taken.
    RecordedStep(const char* op, std::initializer_list<std::span<const T>> operands,
                 const Call* call = nullptr);
    RecordedStep(const char* op, std::vector<T>&& operands) = delete;  // they must outlive the step
    ~RecordedStep() noexcept(false);                                   // a disk may be full
    RecordedStep(const RecordedStep&) = delete;
    /// Run the kernel, unless the step does not fit its budget and goes on for its shapes alone.
    template <typename Kernel>
    void compute(const Kernel& kernel) const {
        if (budget_) [[unlikely]]
            return compute_in_budget(kernel);
        kernel();
    }
    /// Raise if `compute` would not run the kernel.
    void require_contents() const;
    void read(Storage& storage) const;
    void write(Storage& storage) const;
    void cost(const Cost& cost) { cost_ = cost; }

  private:
    void compute_in_budget(const std::function<void()>& kernel) const;

    bool active_;
    StepBudget* budget_;
    int exceptions_;
    const char* op_;
    Cost cost_;
    double began_ = 0;
};

// Told by the allocator.
void record_birth(Storage& storage);
void record_role(Storage& storage);
// Contents leave an arena for a file, or are dropped; and come back from it, or are computed again.
void record_leave(Storage& storage, bool saved);
void record_return(Storage& storage, bool saved);
void record_end(Storage& storage);

}  // namespace accelera::tensora
