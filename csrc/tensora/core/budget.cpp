#include "tensora/core/budget.h"

#include <algorithm>
#include <exception>

#include "tensora/base/spill_file.h"
#include "tensora/device/budget_memory.h"

namespace accelera::tensora {

namespace {

std::atomic<StepBudget*> active{nullptr};
std::atomic<uint32_t> next_step{1};
/// Of an arena without a plan: smaller blocks stay.
constexpr int64_t least_spilled = 1024;

}  // namespace

namespace {

std::unique_ptr<ArenaMemory> memory_on(Device device, int64_t capacity) {
    if (device.is_cpu()) return std::make_unique<MappedMemory>(capacity);
    return std::make_unique<cuda::DeviceMemory>(device.index, capacity);
}

int64_t whole_blocks(int64_t capacity, Device device) {
    return capacity / granule_of(device) * granule_of(device);
}

std::unique_ptr<BackingStore> store_for(Device device, std::string folder) {
    if (device.is_cpu()) return std::make_unique<SpillFile>(std::move(folder));
    return std::make_unique<cuda::HostStore>(device.index);
}

}  // namespace

StepBudget::StepBudget(int64_t capacity, std::string spill_folder, Device device)
    : device_(device),
      arena_(whole_blocks(capacity, device), memory_on(device, whole_blocks(capacity, device))),
      store_(store_for(device, std::move(spill_folder))) {}
StepBudget::~StepBudget() = default;

StepBudget::Unlocked::Unlocked(StepBudget& budget)
    : budget_(budget), locks_(std::exchange(budget.locks_, 0)) {
    for (int i = 0; i < locks_; ++i) budget_.mutex_.unlock();
}
StepBudget::Unlocked::~Unlocked() {
    for (int i = 0; i < locks_; ++i) budget_.mutex_.lock();
    budget_.locks_ = locks_;
}

void StepBudget::begin(int64_t room, std::shared_ptr<const StepPlan> plan) {
    auto log = std::make_shared<StepLog>();
    StepReport report;
    if (used_bytes() > std::min(room, capacity())) {
        report.refusal = "tensors hold more before the step";
        if (plan) report.departure = "operation 0: the step does not fit";
    }
    StepBudget* none = nullptr;
    if (!active.compare_exchange_strong(none, this))
        fail(Kind::runtime, "[budget] a step inside a budget goes on already; end it before the next one");
    // Nothing fails from here on: the step has begun.
    thread_state.budget = this;
    plan_ = std::move(plan);
    if (room < room_) arena_.give_back_pages();
    room_ = std::min(room, capacity());
    log_ = std::move(log);
    uses_.clear();
    held_.clear();
    report_ = std::move(report);
    report_.spilled_bytes = -store_->written_bytes();
    step_ = next_step.fetch_add(1);
    depth_ = 0;
    next_place_ = 0;
    follows_ = plan_ && report_.refusal.empty();
    for (Storage* storage : residents_) storage->house()->last_use = -1;
    report_.peak_bytes = used_bytes();
}

void StepBudget::end() {
    if (here() != this) return;
    const Lock lock(*this);
    std::exception_ptr error;
    // A failing part does not skip the others: the remaining tensors may still be restored, the store keeps
    // the contents not yet read, and the thread must not stay in a step that has ended.
    const auto attempt = [&](const auto& part) {
        try {
            part();
        } catch (...) {
            error = std::current_exception();
        }
    };
    unpin_all();
    born_.clear();
    attempt([&] { return_withheld(); });
    attempt([&] { require_end(); });
    report_.followed = follows_;
    follows_ = false;
    attempt([&] { settle_transfers(); });
    attempt([&] { log_->finish(); });
    for (size_t v = 0; v < held_.size(); ++v) {
        Storage* const storage = held_[v].storage;
        if (!storage || is_present(int32_t(v)) || !storage->house() || storage->house()->slot >= 0) continue;
        if (storage->house()->contents == Contents::missing) continue;
        attempt([&] { restore(*storage); });
    }
    thread_state.budget = nullptr;
    active.store(nullptr);
    const int64_t outliving = outliving_bytes();
    held_.clear();
    recipes_.clear();
    forms_.clear();
    producers_.clear();
    attempt([&] { fetch_filed(); });
    attempt([&] { move_to_end(); });
    attempt([&] { store_->release_unused(); });
    report_.spilled_bytes += store_->written_bytes();
    if (!report_.refusal.empty()) report_.high_bytes = outliving;
    if (error) std::rethrow_exception(error);
}

/// Depart from a plan that has more operations.
void StepBudget::require_end() {
    const size_t done = log_->operations.size();
    if (!follows_ || done == plan_->log->operations.size()) return;
    depart(text("it ended after ", done, " operations, not ", plan_->log->operations.size()));
}

// --- blocks ----------------------------------------------------------------------------------------------

void StepBudget::place(Storage& storage, int64_t nbytes) {
    const Lock lock(*this);
    const bool in_piece = thread_state.in_piece;
    if (depth_ == 0 && !in_piece && !packing_) {
        // Made outside of any operation: one of its own, which nothing can repeat.
        begin_operation("create", {}, nullptr);
        try {
            place(storage, nbytes);
        } catch (...) {
            end_operation(true);
            throw;
        }
        end_operation(false);
        pin(storage);  // until the next one: the caller fills it now
        return;
    }
    arena_.memory->order(nullptr);  // another thread may have let go of what was there
    House& house = *storage.house();
    if (packing_)
        house.place = take_planned(nbytes);
    else if (follows_ || rerunning_)
        house.place = place_by_plan(house, nbytes, in_piece);
    if (house.place < 0 && !find_place(storage, nbytes)) return log_allocation(storage, nbytes, in_piece);
    house.last_use = int64_t(log_->operations.size());
    house.index = int32_t(residents_.size());
    residents_.push_back(&storage);
    storage.data_ = arena_.at(house.place);
    if (rerunning_)
        pin(storage);
    else if (!packing_)
        log_allocation(storage, nbytes, in_piece);
    report_.peak_bytes = std::max(report_.peak_bytes, used_bytes());
}

int64_t StepBudget::place_anywhere(int64_t nbytes) {
    for (bool compacted = false;;) {
        const bool fits = used_bytes() + nbytes <= room_;
        const int64_t place = fits ? arena_.ranges.take(nbytes) : -1;
        if (place >= 0) {
            report_.low_top_bytes = std::max(report_.low_top_bytes, place + nbytes);
            return place;
        }
        if (settle_transfers() || spill_oldest()) {
            compacted = false;
            continue;
        }
        if (!fits || compacted || !movable_) refuse(nbytes);
        compact();
        compacted = true;
    }
}

/// Blocks move to the beginning of the arena, and the gaps between them to its end.
void StepBudget::compact() {
    std::vector<Storage*> moving;
    std::vector<std::pair<int64_t, int64_t>> fixed;
    for (Storage* storage : residents_) {
        const House& house = *storage->house();
        if (storage->lent() || house.in_workspace)
            fixed.emplace_back(house.place, storage->block_bytes());
        else
            moving.push_back(storage);
    }
    if (workspace_.place >= 0) return;
    std::sort(moving.begin(), moving.end(),
              [](Storage* a, Storage* b) { return a->house()->place < b->house()->place; });
    arena_.ranges.reset(capacity());
    for (const auto& [place, nbytes] : fixed) arena_.ranges.take_at(place, nbytes);
    for (Storage* storage : moving) {
        const int64_t place = arena_.ranges.take_first(storage->block_bytes());
        arena_.memory->move(arena_.at(place), storage->data_, storage->nbytes());
        storage->house()->place = place;
        storage->data_ = arena_.at(place);
    }
}

bool StepBudget::spill_oldest() {
    Storage* oldest = nullptr;
    for (Storage* storage : residents_) {
        const House& house = *storage->house();
        if (house.pins || storage->lent() || house.in_workspace || storage->block_bytes() < least_spilled)
            continue;
        if (!oldest || house.last_use < oldest->house()->last_use) oldest = storage;
    }
    if (!oldest) return false;
    spill(*oldest);
    return true;
}

/// The contents are gone; the storage waits for them.
void StepBudget::drop(Storage& storage) {
    House& house = *storage.house();
    arena_.ranges.give(house.place);
    house.place = -1;
    residents_.back()->house()->index = house.index;
    std::swap(residents_[size_t(house.index)], residents_.back());
    residents_.pop_back();
    house.index = -1;
    storage.move(nullptr);
    record_leave(storage, house.slot >= 0);
}

void StepBudget::ended(Storage& storage) {
    const Lock lock(*this);
    House& house = *storage.house();
    let_go(storage);
    if (house.contents == Contents::withheld) std::erase(withheld_, &storage);
    if (house.index >= 0) {
        residents_.back()->house()->index = house.index;
        std::swap(residents_[size_t(house.index)], residents_.back());
        residents_.pop_back();
        if (house.in_workspace) {
            const int64_t inside = house.place - workspace_.place;
            if (house.in_workspace == 1)
                workspace_.caller.give(inside);
            else
                workspace_.pieces[size_t(house.in_workspace - 2)].second.give(
                    inside - workspace_.caller_bytes - (house.in_workspace - 2) * workspace_.piece_bytes);
        } else {
            arena_.ranges.give(house.place);
        }
    }
    if (house.pins) {
        std::erase(pinned_, &storage);
        std::erase(born_, &storage);
    }
    if (house.allocation >= 0 && active.load() == this) events_.push_back({0, ~house.allocation});
    if (Held* const held = held_by(storage)) {
        held->storage = nullptr;
        StepValue& value = log_->values[size_t(storage.in_step.place)];
        value.freed = int32_t(log_->operations.size()) - 1;
        value.lent = storage.lent();
    }
}

void StepBudget::move_to_end() {
    std::vector<Storage*> staying = residents_;
    std::stable_sort(staying.begin(), staying.end(), [](const Storage* a, const Storage* b) {
        return const_cast<Storage*>(a)->house()->place > const_cast<Storage*>(b)->house()->place;
    });
    for (Storage* storage : staying) {
        House& house = *storage->house();
        if (storage->lent() || house.pins) continue;
        const int64_t place = arena_.ranges.take(storage->block_bytes(), true);
        if (place < 0) continue;
        if (place <= house.place) {
            arena_.ranges.give(place);
            continue;
        }
        arena_.memory->move(arena_.at(place), storage->data_, storage->nbytes());
        arena_.ranges.give(house.place);
        house.place = place;
        storage->data_ = arena_.at(place);
    }
    int64_t lowest = capacity();
    for (Storage* storage : residents_) lowest = std::min(lowest, storage->house()->place);
    report_.high_bytes = std::max(report_.high_bytes, capacity() - lowest);
}

// --- operations ------------------------------------------------------------------------------------------

StepBudget::Held* StepBudget::held_by(Storage& storage) {
    const auto value = size_t(storage.in_step.place);
    if (storage.in_step.record != step_ || value >= held_.size()) return nullptr;
    return held_[value].storage == &storage ? &held_[value] : nullptr;
}

void StepBudget::begin_operation(const char* name, std::initializer_list<std::span<const T>> operands,
                                 const Call* call) {
    const Lock lock(*this);
    if (depth_ > 0) {
        pin_operands(operands);
        ++depth_;
        return;
    }
    ++depth_;
    const auto number = int32_t(log_->operations.size());
    unpin_all();
    arena_.memory->order(nullptr);
    log_->operations.emplace_back();
    running_ = {.name = name};
    uses_.clear();
    call_ = call;
    for (const auto& some : operands)
        for (const T& tensor : some) {
            const int32_t value = value_of(*tensor->storage());
            std::vector<int32_t>& reads = uses_.reads;
            if (std::find(reads.begin(), reads.end(), value) == reads.end()) reads.push_back(value);
        }
    movable_ = true;  // no address of a block is in use before the kernel of the operation begins
    creates_ = !call && operands.size() == 0;
    computes_ = report_.refusal.empty() || ((call || creates_) && can_compute(operands));
    try {
        if (computes_) bring_operands(name, operands);
        open_workspace(number);
    } catch (const Refusal& refusal) {
        if (!device_.is_cpu()) {
            movable_ = false;
            --depth_;
            throw;
        }
        note_refusal(refusal.reason);
        computes_ = false;
    } catch (...) {
        movable_ = false;
        --depth_;  // it does not begin
        throw;
    }
    movable_ = call != nullptr;
}

void StepBudget::pin_operands(std::initializer_list<std::span<const T>> operands) {
    for (const auto& some : operands)
        for (const T& tensor : some) {
            Storage& storage = *tensor->storage();
            if (!owns(storage)) continue;
            if (!storage.is_here()) {
                depart("contents that are elsewhere are read");
                restore(storage);
            }
            pin(storage);
        }
}

/// What the plan does before this operation, and all that it reads.
void StepBudget::bring_operands(const char* name, std::initializer_list<std::span<const T>> operands) {
    const auto number = int32_t(log_->operations.size()) - 1;
    if (follows_ && !matches(number, name)) depart(text("'", name, "' is not what the plan expects"));
    if (follows_) act(plan_->before[size_t(number)]);
    for (const auto& some : operands)
        for (const T& tensor : some) {
            Storage& storage = *tensor->storage();
            if (!owns(storage)) continue;
            if (!storage.is_here()) {
                depart("contents that are elsewhere are read");
                restore(storage);
            }
            storage.house()->last_use = number;
            pin(storage);
        }
}

void StepBudget::end_operation(bool failed) {
    const Lock lock(*this);
    if (--depth_ > 0) return;
    movable_ = false;
    const auto number = int32_t(log_->operations.size()) - 1;
    if (follows_ && (failed || workspace_.next != planned(number).allocations))
        depart("it ended before it had allocated what the plan has");
    finish_log();
    close_workspace();
    if (failed) {
        unpin_all();
        call_ = nullptr;
        return;
    }
    if (call_ && running_.pure && follows_ && plan_->recipes[size_t(number)]) keep_recipe(*call_, number);
    call_ = nullptr;
    unpin_all();
    if (follows_) act(plan_->after[size_t(number)]);
}

void StepBudget::pin(Storage& storage) {
    ++storage.house()->pins;
    pinned_.push_back(&storage);
}

void StepBudget::unpin_all() {
    for (Storage* storage : pinned_) --storage->house()->pins;
    pinned_.clear();
}

}  // namespace accelera::tensora
