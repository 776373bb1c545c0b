#pragma once

#include <climits>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tensora/base/arena.h"
#include "tensora/base/backing_store.h"
#include "tensora/base/threads.h"
#include "tensora/core/op.h"
#include "tensora/core/operation_forms.h"

namespace accelera::tensora {

/// An allocation inside an operation: of a value, or (-1) of memory that ended with the operation.
struct StepAllocation {
    int64_t nbytes = 0;
    int32_t value = -1;
};

/// All of an operation but the values that it uses; operations of a loop have the same one.
struct OperationForm {
    const char* name = "";
    double flops = 0;
    int64_t moved_bytes = 0;      ///< read and written
    int64_t workspace_bytes = 0;  ///< of the caller
    int64_t piece_bytes = 0;      ///< of each thread that works on pieces of it
    uint32_t reads = 0, writes = 0, births = 0, allocations = 0;
    bool pure = false;  ///< may run again: it has a recipe, and wrote nothing but its results

    bool operator==(const OperationForm&) const = default;
};

/// One operation of a training step as it ran: numbers of its form, its first value and its first allocation
/// in StepLog. Its values are those that it reads, writes and makes, in this order.
struct StepOperation {
    uint32_t form = 0, first_value = 0, first_allocation = 0;
};

/// Values and allocations of the running operation. Numbers are those of values, in order of their
/// first use.
struct OperationUses {
    std::vector<int32_t> reads, writes, births;
    std::vector<StepAllocation> allocations;

    void clear() {
        for (auto* numbers : {&reads, &writes, &births}) numbers->clear();
        allocations.clear();
    }
};

constexpr int32_t never = INT32_MAX;

/// Memory that operations of a step used.
struct StepValue {
    int64_t nbytes = 0;
    int32_t born = -1;      ///< operation; -1: it was there before the step
    int32_t freed = never;  ///< operation after which it ended
    bool in_arena = false;
    bool lent = false;   ///< another library sees it
    int64_t truths = 0;  ///< elements of a mask, a byte each; 0: it is none
};

/// Steps of recurrent networks have many operations, so the rows of all of them are in few blocks of memory.
class StepLog {
  public:
    std::deque<StepOperation> operations;
    std::vector<StepValue> values;

    const OperationForm& form(const StepOperation& one) const { return forms_[one.form]; }
    std::span<const int32_t> reads(const StepOperation& one) const {
        return {used_values_.data() + one.first_value, form(one).reads};
    }
    std::span<const int32_t> writes(const StepOperation& one) const {
        return {reads(one).data() + form(one).reads, form(one).writes};
    }
    std::span<const int32_t> births(const StepOperation& one) const {
        return {writes(one).data() + form(one).writes, form(one).births};
    }
    std::span<const StepAllocation> allocations(const StepOperation& one) const {
        return {allocations_.data() + one.first_allocation, form(one).allocations};
    }
    /// Add the form of the last operation and the values that it used.
    void close(OperationForm form, const OperationUses& uses);
    /// Nothing follows.
    void finish();

  private:
    uint32_t number_of(const OperationForm& form);

    std::vector<OperationForm> forms_{1};
    std::unordered_multimap<size_t, uint32_t> numbers_;  ///< of forms, by hash
    std::vector<int32_t> used_values_;
    std::vector<StepAllocation> allocations_;
};

/// One thing that a plan has done between operations.
struct StepAction {
    enum class Kind : uint8_t {
        run,   ///< operation `subject` again
        drop,  ///< contents of value `subject`
        out,   ///< value `subject` to the backing store
        in,    ///< and back
        pack,  ///< the mask that value `subject` is, into bits
        unpack,
        out_begin,  ///< to the spill file while operations run
        out_end,
        in_begin,
        in_end
    };
    Kind kind;
    int32_t subject;
};

/// What a step does besides its operations, and where its blocks lie.
struct StepPlan {
    std::shared_ptr<const StepLog> log;                  ///< of the step that it was made from
    std::vector<std::vector<StepAction>> before, after;  ///< by operation
    std::vector<uint8_t> recipes;                        ///< operations that run again
    std::vector<int64_t> places;                         ///< of blocks, in order of their allocation
};

/// What was measured of the last step.
struct StepReport {
    bool followed = false;      ///< a plan, to its end
    std::string departure;      ///< where the step was another than the plan's
    int64_t peak_bytes = 0;     ///< most bytes of blocks at once
    int64_t low_top_bytes = 0;  ///< end of the highest block that ended with the step
    int64_t high_bytes = 0;     ///< of the part for blocks that outlive the step
    int64_t spilled_bytes = 0;
    int64_t needed_bytes = 0;  ///< by the operation that did not fit
    std::string refusal;       ///< why the step did not fit; empty if it did
    int64_t reruns = 0;
};

/// An operation does not fit the budget of its step.
struct Refusal : Error {
    explicit Refusal(std::string why) : Error(Kind::memory, "[budget] " + why), reason(std::move(why)) {}
    std::string reason;
};

/// Training steps inside a limit of bytes. Between `begin` and `end` all tensors of the thread on one device
/// lie in one arena, what is done is logged, and contents leave by a plan made from an earlier log; without a
/// plan, or when the step is another one, those used longest ago go to the backing store.
class StepBudget final : public Counted {
  public:
    /// Steps on the CPU spill to a file in a folder, those on a CUDA device to memory of the host.
    StepBudget(int64_t capacity, std::string spill_folder, Device device);
    ~StepBudget() override;

    /// Begin a step that takes at most `room` bytes of the arena, and follows a plan unless it is null. If
    /// its arena already holds more, the step is refused, and recorded for its shapes alone.
    void begin(int64_t room, std::shared_ptr<const StepPlan> plan);
    void end();

    /// The record of the step that goes on, or of the last one, which nothing changes any more.
    std::shared_ptr<const StepLog> log() const { return log_; }
    const StepReport& report() const { return report_; }
    int64_t capacity() const { return arena_.ranges.capacity(); }
    int64_t used_bytes() const { return arena_.ranges.used_bytes(); }
    Device device() const { return device_; }

    /// The budget whose step this thread carries out, or helps to; null outside of a step.
    static StepBudget* here() { return thread_state.budget; }
    /// Whether tensors that this thread makes on a device belong to a step.
    static bool covers(Device device) { return here() && here()->device_ == device; }
    /// While it lives, what this thread does is no part of a step.
    class Outside {
      public:
        Outside() : before_(std::exchange(thread_state.budget, nullptr)) {}
        ~Outside() { thread_state.budget = before_; }
        Outside(const Outside&) = delete;

      private:
        StepBudget* before_;
    };

    // --- told by storages and operations

    void place(Storage& storage, int64_t nbytes);
    void ended(Storage& storage);
    /// Bring contents back that somebody asks for.
    void reach(Storage& storage);
    /// A storage is about to be written in place.
    void before_write(Storage& storage);
    void begin_operation(const char* name, std::initializer_list<std::span<const T>> operands,
                         const Call* call);
    /// Run the kernel of the running operation, if there are contents to compute with.
    void run_kernel(const std::function<void()>& kernel);
    /// Raise if a tensor that the program asks for is larger than the room of the step: the program may do
    /// without it, and the step goes on.
    void require_fit(int64_t nbytes);
    /// Raise if the running operation has no contents to compute with.
    void require_contents();
    /// Raise as the contents of a tensor that is not of the arena are read.
    [[noreturn]] static void refuse_withheld();
    void end_operation(bool failed);
    void note_write(Storage& storage);

  private:
    /// Against threads of the pool, which allocate, and others, which let go. Nests.
    class Lock {
      public:
        explicit Lock(StepBudget& budget) : budget_(budget) {
            budget_.mutex_.lock();
            ++budget_.locks_;
        }
        ~Lock() {
            --budget_.locks_;
            budget_.mutex_.unlock();
        }
        Lock(const Lock&) = delete;

      private:
        StepBudget& budget_;
    };
    /// While it lives the thread's locks are open: a kernel runs, whose threads allocate.
    class Unlocked {
      public:
        explicit Unlocked(StepBudget& budget);
        ~Unlocked();
        Unlocked(const Unlocked&) = delete;

      private:
        StepBudget& budget_;
        int locks_;
    };

    /// How to run an operation again. Parameters and layouts are numbers in `forms_`, as the operations of a
    /// loop have the same ones.
    struct Recipe {
        struct Input {
            int32_t value;
            int32_t layout;
            Ref<Storage> outside;  ///< memory that is no value of the arena
            DType dtype;
        };
        const Op* op;
        int32_t params;
        std::vector<Input> inputs;
        std::vector<int32_t> outputs;
    };
    struct Held {
        Storage* storage = nullptr;  ///< null: its tensors are gone
        Ref<Storage> again;          ///< made by a rerun, after that
    };
    /// Memory inside one operation or rerun.
    struct Workspace {
        int32_t operation = -1;
        size_t next = 0;     ///< allocation
        int64_t place = -1;  ///< of the block; -1: none
        AddressRanges caller{0};
        int64_t caller_bytes = 0, piece_bytes = 0;
        std::vector<std::pair<std::thread::id, AddressRanges>> pieces;
    };
    struct Event {
        int slot;        ///< 0: the caller; else a thread
        int allocation;  ///< number, or ~number when it ends
    };

    /// Whether a storage is in this arena, or left it for the store.
    bool owns(const Storage& storage) const {
        return storage.house() && storage.house()->budget.get() == this;
    }
    /// Contents that are in the arena, for what comes next.
    static const char* contents_of(Storage& storage);
    int32_t value_of(Storage& storage);
    /// Where the step holds a storage; null if it does not.
    Held* held_by(Storage& storage);
    bool matches(int32_t operation, const char* name) const;
    const OperationForm& planned(int32_t operation) const {
        return plan_->log->form(plan_->log->operations[size_t(operation)]);
    }
    /// Bring the operands of a step inside another one back, and pin them until the outer one ends.
    void pin_operands(std::initializer_list<std::span<const T>> operands);
    void bring_operands(const char* name, std::initializer_list<std::span<const T>> operands);
    void depart(const std::string& why);
    void require_end();
    bool may_leave(const Storage& storage);
    void act(const std::vector<StepAction>& actions);
    void act_on_value(StepAction::Kind kind, Held& held);
    void open_workspace(int32_t operation);
    void close_workspace();
    int64_t place_by_plan(House& house, int64_t nbytes, bool in_piece);
    int64_t place_in_workspace(House& house, int64_t nbytes, bool in_piece);
    int64_t place_anywhere(int64_t nbytes);
    int64_t take_planned(int64_t nbytes);
    bool spill_oldest();
    void compact();
    void log_allocation(Storage& storage, int64_t nbytes, bool in_piece);
    void finish_log();
    void name_births();
    void measure_workspace();
    void note_masks(const Call& call);
    void keep_recipe(const Call& call, int32_t operation);
    void run_again(int32_t operation);
    void compute_again(Call& call);
    void take_result(int32_t value, const Ref<Storage>& made);
    Ref<Storage> input_of(const Recipe::Input& input);
    void recompute(int32_t value);
    void pack(Storage& storage);
    void unpack(Storage& storage);
    void drop(Storage& storage);
    void spill(Storage& storage);
    void begin_spill(Storage& storage);
    void end_spill(Storage& storage);
    void restore(Storage& storage);
    void begin_restore(Storage& storage);
    void end_restore(Storage& storage);
    int64_t end_passage(Storage& storage);
    bool settle_transfers();
    void let_go(Storage& storage) noexcept;
    void enter(Storage& storage, bool complete);
    bool is_present(int32_t value) const;
    void pin(Storage& storage);
    /// A pin for the duration of a scope, which an exception leaves as well.
    class ScopedPin {
      public:
        explicit ScopedPin(Storage& storage) : house_(*storage.house()) { ++house_.pins; }
        ~ScopedPin() { --house_.pins; }
        ScopedPin(const ScopedPin&) = delete;

      private:
        House& house_;
    };
    void unpin_all();
    void fetch_filed();
    void move_to_end();
    [[noreturn]] void refuse(int64_t nbytes);
    void note_refusal(const std::string& why);
    [[noreturn]] void refuse_contents(const Storage& storage) const;
    bool can_compute(std::initializer_list<std::span<const T>> operands) const;
    bool find_place(Storage& storage, int64_t nbytes);
    void lose_results();
    void bound_workspace();
    void withhold(Storage& storage);
    void return_withheld();
    int64_t outliving_bytes() const;

    const Device device_;
    Arena arena_;
    std::unique_ptr<BackingStore> store_;
    std::recursive_mutex mutex_;
    int locks_ = 0;
    std::vector<Storage*> residents_, filed_, moving_;
    std::shared_ptr<StepLog> log_ = std::make_shared<StepLog>();
    OperationForm running_;  ///< operation
    OperationUses uses_;     ///< of it
    int64_t room_ = 0;
    std::shared_ptr<const StepPlan> plan_;
    bool follows_ = false;
    size_t next_place_ = 0;
    StepReport report_;
    uint32_t step_ = 0;
    int depth_ = 0;
    bool rerunning_ = false;
    bool packing_ = false;
    bool movable_ = false;  ///< no kernel has the address of any block
    bool computes_ = true;  ///< the running operation has contents to compute with
    bool creates_ = false;  ///< it makes a tensor that its caller fills
    bool kernel_runs_ = false;
    std::vector<Storage*> withheld_;  ///< of the arena
    std::vector<Ref<Storage>> withheld_outside_;
    const Call* call_ = nullptr;
    Workspace workspace_;
    std::vector<Held> held_;
    std::unordered_map<int32_t, Recipe> recipes_;  ///< by operation
    OperationForms forms_;
    std::vector<int32_t> producers_;  ///< of values, where a recipe makes them
    std::vector<Storage*> pinned_, born_;
    std::vector<Event> events_;
    std::vector<std::thread::id> threads_;
};

}  // namespace accelera::tensora
