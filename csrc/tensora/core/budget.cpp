#include "tensora/core/budget.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/core/spill_file.h"
#include "tensora/cuda/budget_memory.h"

namespace accelera::tensora {

namespace {

std::atomic<StepBudget*> active{nullptr};
std::atomic<uint32_t> next_step{1};
/// Of an arena without a plan: smaller blocks stay.
constexpr int64_t least_spilled = 1024;

/// Whether contents that are not at hand come back without computing anything.
bool is_stored(Storage& storage) { return storage.house()->slot >= 0 || storage.house()->packed; }

}  // namespace

double StepBudget::now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

std::unique_ptr<ArenaMemory> memory_on(Device device, int64_t capacity) {
    if (device.is_cpu()) return std::make_unique<MappedMemory>(capacity);
    return std::make_unique<cuda::DeviceMemory>(device.index, capacity);
}

std::unique_ptr<BackingStore> store_for(Device device, std::string folder) {
    if (device.is_cpu()) return std::make_unique<SpillFile>(std::move(folder));
    return std::make_unique<cuda::HostStore>(device.index);
}

}  // namespace

StepBudget::StepBudget(int64_t capacity, std::string spill_folder, Device device)
    : device_(device),
      arena_(capacity, memory_on(device, capacity)),
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
    StepBudget* none = nullptr;
    if (!active.compare_exchange_strong(none, this))
        fail(Kind::runtime, "budget: a step inside a budget goes on already; end it before the next one");
    thread_state.budget = this;
    plan_ = std::move(plan);
    if (room < room_) arena_.give_back_pages();
    room_ = std::min(room, capacity());
    log_ = {};
    held_.clear();
    report_ = {};
    report_.spilled_bytes = -store_->written_bytes();
    step_ = next_step.fetch_add(1);
    depth_ = 0;
    next_place_ = 0;
    follows_ = bool(plan_);
    for (Storage* storage : residents_) storage->house()->last_use = -1;
    report_.peak_bytes = used_bytes();
}

void StepBudget::end() {
    if (here() != this) return;
    const Lock lock(*this);
    unpin_all();
    born_.clear();
    if (follows_ && log_.operations.size() != plan_->log.operations.size())
        depart(text("it ended after ", log_.operations.size(), " operations, not ",
                    plan_->log.operations.size()));
    report_.followed = follows_;
    follows_ = false;
    settle_transfers();
    std::exception_ptr error;
    try {
        for (size_t v = 0; v < held_.size(); ++v)
            if (held_[v].storage && !is_present(int32_t(v)) && held_[v].storage->house() &&
                held_[v].storage->house()->slot < 0)
                restore(*held_[v].storage);
    } catch (...) {
        error = std::current_exception();
    }
    thread_state.budget = nullptr;
    active.store(nullptr);
    held_.clear();
    recipes_.clear();
    producers_.clear();
    fetch_filed();
    move_to_end();
    report_.spilled_bytes += store_->written_bytes();
    if (error) std::rethrow_exception(error);
}

// --- blocks ----------------------------------------------------------------------------------------------

void StepBudget::place(Storage& storage, int64_t nbytes) {
    const Lock lock(*this);
    const bool in_piece = thread_state.in_piece;
    if (depth_ == 0 && !in_piece && !packing_) {
        // Made outside of any operation: one of its own, which nothing can repeat.
        begin_operation("create", {}, nullptr);
        place(storage, nbytes);
        end_operation(false);
        pin(storage);  // until the next one: somebody fills it now
        return;
    }
    arena_.memory->order(nullptr);  // another thread may have let go of what was there
    House& house = *storage.house();
    if (packing_)
        house.place = take_planned(nbytes);
    else if (follows_ || rerunning_)
        house.place = place_by_plan(house, nbytes, in_piece);
    if (house.place < 0) house.place = place_anywhere(nbytes);
    house.last_use = int64_t(log_.operations.size());
    house.index = int32_t(residents_.size());
    residents_.push_back(&storage);
    storage.data_ = arena_.at(house.place);
    if (rerunning_)
        pin(storage);
    else if (!packing_)
        log_allocation(storage, nbytes, in_piece);
    report_.peak_bytes = std::max(report_.peak_bytes, used_bytes());
}

void StepBudget::refuse(int64_t nbytes) {
    int64_t pinned = 0;
    for (Storage* storage : residents_) pinned += storage->block_bytes();
    report_.needed_bytes = std::max(pinned, used_bytes() + nbytes > room_ ? 0 : room_) + nbytes;
    const char* const name = log_.operations.empty() ? "" : log_.operations.back().name;
    fail(Kind::memory, "budget: '", name, "' needs ", nbytes, " bytes more; ", used_bytes(),
         " of the step's ", room_,
         " are in use by tensors that it reads or that cannot leave, and the largest gap has ",
         arena_.ranges.largest_gap());
}

int64_t StepBudget::place_anywhere(int64_t nbytes) {
    for (;;) {
        const bool fits = used_bytes() + nbytes <= room_;
        const int64_t place = fits ? arena_.ranges.take(nbytes) : -1;
        if (place >= 0) {
            report_.low_top_bytes = std::max(report_.low_top_bytes, place + nbytes);
            return place;
        }
        if (settle_transfers() || spill_oldest()) continue;
        if (!fits || !std::exchange(movable_, false)) refuse(nbytes);
        compact();
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
        StepValue& value = log_.values[size_t(storage.in_step.place)];
        value.freed = int32_t(log_.operations.size()) - 1;
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

// --- following a plan ------------------------------------------------------------------------------------

void StepBudget::depart(const std::string& why) {
    if (!follows_) return;
    follows_ = false;
    settle_transfers();
    report_.departure = text("operation ", log_.operations.size(), ": ", why);
}

bool StepBudget::matches(int32_t operation, const char* name) const {
    if (size_t(operation) >= plan_->log.operations.size()) return false;
    const StepOperation& planned = plan_->log.operations[size_t(operation)];
    return std::strcmp(planned.name, name) == 0 && planned.reads == log_.operations.back().reads;
}

int64_t StepBudget::place_by_plan(House& house, int64_t nbytes, bool in_piece) {
    if (workspace_.operation < 0) return -1;
    if (in_piece) return place_in_workspace(house, nbytes, true);
    const StepOperation& planned = plan_->log.operations[size_t(workspace_.operation)];
    if (workspace_.next >= planned.allocations.size() ||
        planned.allocations[workspace_.next].nbytes != nbytes) {
        depart(text(nbytes, " bytes were allocated that the plan does not have"));
        return -1;
    }
    const StepAllocation& wanted = planned.allocations[workspace_.next++];
    if (wanted.value < 0) return place_in_workspace(house, nbytes, false);
    if (!follows_) return -1;
    int64_t place = -1;
    if (!rerunning_ && plan_->log.values[size_t(wanted.value)].freed == never) {
        place = arena_.ranges.take(nbytes, true);
        if (place >= 0) report_.high_bytes = std::max(report_.high_bytes, capacity() - place);
    } else {
        return take_planned(nbytes);
    }
    if (place < 0) depart("the planned place of a block is taken");
    return place;
}

/// The next place of the plan; -1 without one, or where the place is taken.
int64_t StepBudget::take_planned(int64_t nbytes) {
    if (!follows_) return -1;
    const int64_t place = plan_->places[next_place_++];
    if (!arena_.ranges.take_at(place, nbytes)) {
        depart("the planned place of a block is taken");
        return -1;
    }
    report_.low_top_bytes = std::max(report_.low_top_bytes, place + nbytes);
    return place;
}

int64_t StepBudget::place_in_workspace(House& house, int64_t nbytes, bool in_piece) {
    if (workspace_.place < 0) return -1;
    AddressRanges* ranges = &workspace_.caller;
    int64_t first = workspace_.place;
    int16_t mark = 1;
    if (in_piece) {
        const auto id = std::this_thread::get_id();
        size_t i = 0;
        while (i < workspace_.pieces.size() && workspace_.pieces[i].first != id) ++i;
        if (i == workspace_.pieces.size()) {
            if (int(i) == thread_count()) return -1;
            workspace_.pieces.emplace_back(id, AddressRanges(workspace_.piece_bytes));
        }
        ranges = &workspace_.pieces[i].second;
        mark = int16_t(2 + i);
        first += workspace_.caller_bytes + int64_t(i) * workspace_.piece_bytes;
    }
    const int64_t inside = ranges->take_first(nbytes);
    if (inside < 0) return -1;
    house.in_workspace = mark;
    return first + inside;
}

void StepBudget::open_workspace(int32_t operation) {
    workspace_ = {};
    workspace_.operation = operation;
    if (!follows_) return;
    const StepOperation& planned = plan_->log.operations[size_t(operation)];
    const int64_t nbytes = planned.workspace_bytes + planned.piece_bytes * thread_count();
    if (nbytes == 0) return;
    const int64_t place = take_planned(nbytes);
    if (place < 0) return;
    report_.peak_bytes = std::max(report_.peak_bytes, used_bytes());
    workspace_.place = place;
    workspace_.caller_bytes = planned.workspace_bytes;
    workspace_.piece_bytes = planned.piece_bytes;
    workspace_.caller.reset(planned.workspace_bytes);
}

void StepBudget::close_workspace() {
    if (workspace_.place >= 0) arena_.ranges.give(workspace_.place);
    workspace_ = {};
}

/// Memory that another library sees stays, and the step departs from a plan that does not know of it.
bool StepBudget::may_leave(const Storage& storage) {
    if (storage.lent()) depart("a tensor that is to leave memory was given to another library");
    return !storage.lent();
}

void StepBudget::act(const std::vector<StepAction>& actions) {
    for (const StepAction& action : actions) {
        if (!follows_) return;
        if (action.kind == StepAction::Kind::run)
            run_again(action.subject);
        else
            act_on_value(action.kind, held_[size_t(action.subject)]);
    }
}

void StepBudget::act_on_value(StepAction::Kind kind, Held& held) {
    if (kind == StepAction::Kind::drop && held.again) return held.again.reset();
    const bool comes = kind == StepAction::Kind::in || kind == StepAction::Kind::in_begin ||
                       kind == StepAction::Kind::unpack;
    if (!held.storage || !owns(*held.storage)) {
        if (comes) depart("contents that would come back have ended");
        return;
    }
    Storage& storage = *held.storage;
    if (!comes && kind != StepAction::Kind::in_end && !may_leave(storage)) return;
    switch (kind) {
        case StepAction::Kind::run:
            break;
        case StepAction::Kind::drop:
            if (storage.house()->index >= 0) drop(storage);
            break;
        case StepAction::Kind::out:
            spill(storage);
            break;
        case StepAction::Kind::pack:
            pack(storage);
            break;
        case StepAction::Kind::in:
        case StepAction::Kind::unpack:
            restore(storage);
            break;
        case StepAction::Kind::out_begin:
            begin_spill(storage);
            break;
        case StepAction::Kind::out_end:
            end_spill(storage);
            break;
        case StepAction::Kind::in_begin:
            begin_restore(storage);
            break;
        case StepAction::Kind::in_end:
            end_restore(storage);
            break;
    }
}

// --- operations ------------------------------------------------------------------------------------------

int32_t StepBudget::value_of(Storage& storage) {
    if (storage.in_step.record == step_) return storage.in_step.place;
    const auto number = int32_t(log_.values.size());
    storage.in_step = {step_, number};
    log_.values.push_back({storage.block_bytes(), -1, never, owns(storage)});
    held_.push_back({&storage, nullptr});
    producers_.push_back(-1);
    return number;
}

StepBudget::Held* StepBudget::held_by(Storage& storage) {
    const auto value = size_t(storage.in_step.place);
    if (storage.in_step.record != step_ || value >= held_.size()) return nullptr;
    return held_[value].storage == &storage ? &held_[value] : nullptr;
}

void StepBudget::begin_operation(const char* name, std::initializer_list<std::span<const T>> operands,
                                 const Call* call) {
    const Lock lock(*this);
    if (depth_++ > 0) return;
    const auto number = int32_t(log_.operations.size());
    unpin_all();
    arena_.memory->order(nullptr);
    log_.operations.emplace_back();
    StepOperation& operation = log_.operations.back();
    operation.name = name;
    call_ = call;
    for (const auto& some : operands)
        for (const T& tensor : some) {
            const int32_t value = value_of(*tensor->storage());
            if (std::find(operation.reads.begin(), operation.reads.end(), value) == operation.reads.end())
                operation.reads.push_back(value);
        }
    try {
        bring_operands(name, operands);
        open_workspace(number);
    } catch (...) {
        --depth_;  // it does not begin
        throw;
    }
    movable_ = call != nullptr;
    waited_ = 0;
    began_ = now();
}

/// What the plan does before this operation, and all that it reads.
void StepBudget::bring_operands(const char* name, std::initializer_list<std::span<const T>> operands) {
    const auto number = int32_t(log_.operations.size()) - 1;
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
    StepOperation& operation = log_.operations.back();
    const auto number = int32_t(log_.operations.size()) - 1;
    operation.seconds = std::max(0.0, now() - began_ - waited_);
    if (follows_ && (failed || workspace_.next != plan_->log.operations[size_t(number)].allocations.size()))
        depart("it ended before it had allocated what the plan has");
    finish_log(operation);
    close_workspace();
    if (failed) {
        unpin_all();
        call_ = nullptr;
        return;
    }
    if (call_ && operation.pure && follows_ && plan_->recipes[size_t(number)]) keep_recipe(*call_, number);
    call_ = nullptr;
    unpin_all();
    if (follows_) act(plan_->after[size_t(number)]);
}

void StepBudget::note_write(Storage& storage) {
    const Lock lock(*this);
    if (depth_ != 1) return;
    log_.operations.back().writes.push_back(value_of(storage));
}

void StepBudget::pin(Storage& storage) {
    ++storage.house()->pins;
    pinned_.push_back(&storage);
}

void StepBudget::unpin_all() {
    for (Storage* storage : pinned_) --storage->house()->pins;
    pinned_.clear();
}

void StepBudget::log_allocation(Storage& storage, int64_t nbytes, bool in_piece) {
    House& house = *storage.house();
    int slot = 0;
    if (in_piece) {
        const auto id = std::this_thread::get_id();
        const auto known = std::find(threads_.begin(), threads_.end(), id);
        slot = 1 + int(known - threads_.begin());
        if (known == threads_.end()) threads_.push_back(id);
    }
    StepOperation& operation = log_.operations.back();
    house.allocation = int32_t(operation.allocations.size());
    operation.allocations.push_back({nbytes, -1});
    events_.push_back({slot, house.allocation});
    born_.push_back(&storage);
    pin(storage);
}

/// What was allocated in the operation and is there still are its values; the rest was its workspace, whose
/// size is that of the same sequence of blocks, each laid into the first gap.
void StepBudget::finish_log(StepOperation& operation) {
    const auto number = int32_t(log_.operations.size()) - 1;
    std::vector<StepAllocation>& all = operation.allocations;
    std::vector<int> slots(all.size(), 0);
    for (Storage* storage : born_) {
        House& house = *storage->house();
        all[size_t(house.allocation)].value = 0;
    }
    std::sort(born_.begin(), born_.end(),
              [](Storage* a, Storage* b) { return a->house()->allocation < b->house()->allocation; });
    for (Storage* storage : born_) {
        const int32_t value = value_of(*storage);
        log_.values[size_t(value)].born = number;
        operation.births.push_back(value);
        all[size_t(storage->house()->allocation)].value = value;
        storage->house()->allocation = -1;
    }
    born_.clear();
    constexpr int64_t endless = int64_t(1) << 60;
    std::vector<AddressRanges> ranges(threads_.size() + 1, AddressRanges(endless));
    std::vector<int64_t> places(all.size(), -1);
    std::vector<StepAllocation> of_caller;
    for (const Event& event : events_) {
        const int i = event.allocation < 0 ? ~event.allocation : event.allocation;
        if (all[size_t(i)].value >= 0) continue;
        if (event.allocation < 0) {
            if (places[size_t(i)] >= 0) ranges[size_t(slots[size_t(i)])].give(places[size_t(i)]);
            continue;
        }
        slots[size_t(i)] = event.slot;
        places[size_t(i)] = ranges[size_t(event.slot)].take_first(all[size_t(i)].nbytes);
        int64_t& most = event.slot ? operation.piece_bytes : operation.workspace_bytes;
        most = std::max(most, places[size_t(i)] + all[size_t(i)].nbytes);
    }
    // What threads allocate has no order.
    for (size_t i = 0; i < all.size(); ++i)
        if (slots[i] == 0) of_caller.push_back(all[i]);
    all = std::move(of_caller);
    events_.clear();
    threads_.clear();
    if (call_) {
        operation.flops = cost_of(*call_).flops;
        note_masks(*call_);
    }
    for (const auto* values : {&operation.reads, &operation.births})
        for (const int32_t value : *values) operation.moved_bytes += log_.values[size_t(value)].nbytes;
    operation.pure = call_ && operation.writes.empty() && int(operation.births.size()) == call_->op.outputs;
}

/// Results of truths alone can be packed into bits.
void StepBudget::note_masks(const Call& call) {
    for (int i = 0; i < call.op.outputs; ++i) {
        const T& made = call.out[size_t(i)];
        if (!made || made->dtype() != DType::bool_ || !made->storage()->house()) continue;
        StepValue& value = log_.values[size_t(value_of(*made->storage()))];
        if (value.born == int32_t(log_.operations.size()) - 1 && made->storage()->nbytes() == made->size())
            value.truths = made->size();
    }
}

// --- running again ---------------------------------------------------------------------------------------

void StepBudget::keep_recipe(const Call& call, int32_t operation) {
    Recipe recipe{&call.op, call.params, {}, {}};
    for (const T& input : call.in) {
        Storage& storage = *input->storage();
        const bool outside = !owns(storage) || log_.values[size_t(value_of(storage))].born < 0;
        recipe.inputs.push_back({value_of(storage), outside ? Ref<Storage>(&storage) : Ref<Storage>(),
                                 input->layout(), input->dtype()});
    }
    for (int i = 0; i < call.op.outputs; ++i) {
        recipe.outputs.push_back(value_of(*call.out[size_t(i)]->storage()));
        producers_[size_t(recipe.outputs.back())] = operation;
    }
    recipes_.insert_or_assign(operation, std::move(recipe));
}

bool StepBudget::is_present(int32_t value) const {
    const Held& held = held_[size_t(value)];
    return held.again || (held.storage && held.storage->is_here());
}

Ref<Storage> StepBudget::input_of(const Recipe::Input& input) {
    if (input.outside) return input.outside;
    Held& held = held_[size_t(input.value)];
    const Ref<Storage> storage = held.again ? held.again : Ref<Storage>(held.storage);
    if (!storage) fail(Kind::runtime, "budget: an operation runs again, but what it reads is gone");
    return storage;
}

void StepBudget::compute_again(Call& call) {
    movable_ = true;
    const Unlocked open(*this);
    if (!device_.is_cpu() && !call.op.cuda) return compute_on_host(call, device_);
    for (int i = 0; i < call.op.outputs; ++i)
        call.out[size_t(i)] = Tensor::empty(call.made[size_t(i)].shape, call.made[size_t(i)].dtype);
    movable_ = false;
    device_.is_cpu() ? call.op.cpu(call) : call.op.cuda(call);
}

void StepBudget::run_again(int32_t number) {
    const Recipe& recipe = recipes_.at(number);
    const bool nested = std::exchange(rerunning_, true);
    const Workspace before = std::exchange(workspace_, {});
    const std::vector<Storage*> pinned_before = std::exchange(pinned_, {});
    ++depth_;
    try {
        std::vector<T> inputs;
        for (const Recipe::Input& input : recipe.inputs) {
            const Ref<Storage> storage = input_of(input);
            if (owns(*storage)) {
                if (!storage->is_here()) restore(*storage);
                pin(*storage);
            }
            inputs.emplace_back(new Tensor(storage, input.layout, input.dtype));
        }
        open_workspace(number);
        const GradMode off(false);
        const RunNow now;
        const AutocastPause as_given;
        const RoleScope role(Role::activation);
        const DeviceScope scope(device_);
        Call call{*recipe.op, inputs, recipe.params};
        recipe.op->rule(call);
        compute_again(call);
        for (int i = 0; i < recipe.op->outputs; ++i)
            take_result(recipe.outputs[size_t(i)], call.out[size_t(i)]->storage());
    } catch (...) {
        unpin_all();
        pinned_ = pinned_before;
        close_workspace();
        workspace_ = before;
        --depth_;
        rerunning_ = nested;
        throw;
    }
    unpin_all();
    pinned_ = pinned_before;
    close_workspace();
    workspace_ = before;
    --depth_;
    rerunning_ = nested;
    ++report_.reruns;
}

void StepBudget::take_result(int32_t value, const Ref<Storage>& made) {
    Held& held = held_[size_t(value)];
    if (is_present(value)) return;
    if (!held.storage) {
        held.again = made;
        return;
    }
    Storage& storage = *held.storage;
    House &to = *storage.house(), &from = *made->house();
    if (is_stored(storage)) return;
    to.place = std::exchange(from.place, -1);
    to.index = std::exchange(from.index, -1);
    to.last_use = from.last_use;
    residents_[size_t(to.index)] = &storage;
    char* const data = made->data_;
    made->move(nullptr);
    record_leave(*made, false);
    storage.move(data);
    record_return(storage, false);
}

/// Bring contents back that were dropped: what has to run, in order, each once; what is made on the way ends
/// with its last use.
void StepBudget::recompute(int32_t value) {
    std::vector<int32_t> left{value}, runs;
    while (!left.empty()) {
        const int32_t one = left.back();
        left.pop_back();
        const int32_t producer = producers_[size_t(one)];
        if (producer < 0) fail(Kind::runtime, "budget: contents of a tensor cannot be computed again");
        if (std::find(runs.begin(), runs.end(), producer) != runs.end()) continue;
        runs.push_back(producer);
        for (const Recipe::Input& input : recipes_.at(producer).inputs) {
            if (input.outside || is_present(input.value)) continue;
            Storage* const storage = held_[size_t(input.value)].storage;
            if (storage && is_stored(*storage)) continue;
            left.push_back(input.value);
        }
    }
    std::sort(runs.begin(), runs.end());
    for (size_t i = 0; i < runs.size(); ++i) {
        run_again(runs[i]);
        for (size_t k = 0; k <= i; ++k)
            for (const int32_t made : recipes_.at(runs[k]).outputs) {
                bool used = made == value;
                for (size_t later = i + 1; later < runs.size() && !used; ++later)
                    for (const Recipe::Input& input : recipes_.at(runs[later]).inputs)
                        used = used || input.value == made;
                if (!used) held_[size_t(made)].again.reset();
            }
    }
}

/// Nothing that was dropped may depend on what is overwritten. A plan knows of the write.
void StepBudget::before_write(Storage&) {
    const Lock lock(*this);
    if (follows_ || recipes_.empty()) return;
    for (size_t v = 0; v < held_.size(); ++v)
        if (held_[v].storage && held_[v].storage->house() && !is_present(int32_t(v)) &&
            held_[v].storage->house()->slot < 0)
            restore(*held_[v].storage);
    recipes_.clear();
}

}  // namespace accelera::tensora
