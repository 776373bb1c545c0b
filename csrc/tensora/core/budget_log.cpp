// Log of a step inside a budget: operations, values and workspaces.
#include <algorithm>

#include "tensora/core/budget.h"

namespace accelera::tensora {

void StepLog::close(OperationForm form, const OperationUses& uses) {
    form.reads = uint32_t(uses.reads.size());
    form.writes = uint32_t(uses.writes.size());
    form.births = uint32_t(uses.births.size());
    form.allocations = uint32_t(uses.allocations.size());
    operations.back() = {number_of(form), uint32_t(used_values_.size()), uint32_t(allocations_.size())};
    for (const auto* values : {&uses.reads, &uses.writes, &uses.births})
        used_values_.insert(used_values_.end(), values->begin(), values->end());
    allocations_.insert(allocations_.end(), uses.allocations.begin(), uses.allocations.end());
}

uint32_t StepLog::number_of(const OperationForm& form) {
    const size_t hash = std::hash<const void*>()(form.name) ^ std::hash<double>()(form.flops) ^
                        size_t(form.moved_bytes * 31 + form.workspace_bytes * 17 + form.allocations);
    const auto [first, last] = numbers_.equal_range(hash);
    for (auto place = first; place != last; ++place)
        if (forms_[place->second] == form) return place->second;
    forms_.push_back(form);
    numbers_.emplace(hash, uint32_t(forms_.size() - 1));
    return uint32_t(forms_.size() - 1);
}

void StepLog::finish() {
    numbers_.clear();
    used_values_.shrink_to_fit();
    allocations_.shrink_to_fit();
    values.shrink_to_fit();
}

int32_t StepBudget::value_of(Storage& storage) {
    if (storage.in_step.record == step_) return storage.in_step.place;
    const auto number = int32_t(log_->values.size());
    storage.in_step = {step_, number};
    log_->values.push_back({storage.block_bytes(), -1, never, owns(storage)});
    // Storages of other owners end without notice.
    held_.push_back({owns(storage) ? &storage : nullptr, nullptr});
    producers_.push_back(-1);
    return number;
}

void StepBudget::note_write(Storage& storage) {
    const Lock lock(*this);
    if (depth_ != 1) return;
    if (!computes_) withhold(storage);
    uses_.writes.push_back(value_of(storage));
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
    // Its end is an event too, and must not fail.
    if (events_.capacity() < 2 * (events_.size() + 1)) events_.reserve(4 * (events_.size() + 1));
    house.allocation = int32_t(uses_.allocations.size());
    uses_.allocations.push_back({nbytes, -1});
    events_.push_back({slot, house.allocation});
    born_.push_back(&storage);
    pin(storage);
}

/// What was allocated in the operation and is there still are its values; the rest was its workspace.
void StepBudget::finish_log() {
    name_births();
    measure_workspace();
    if (call_ && !computes_) bound_workspace();
    if (call_) {
        running_.flops = cost_of(*call_).flops;
        note_masks(*call_);
    }
    for (const auto* values : {&uses_.reads, &uses_.births})
        for (const int32_t value : *values) running_.moved_bytes += log_->values[size_t(value)].nbytes;
    running_.pure = call_ && uses_.writes.empty() && int(uses_.births.size()) == call_->op.outputs;
    log_->close(running_, uses_);
}

void StepBudget::name_births() {
    std::sort(born_.begin(), born_.end(),
              [](Storage* a, Storage* b) { return a->house()->allocation < b->house()->allocation; });
    for (Storage* storage : born_) {
        const int32_t value = value_of(*storage);
        log_->values[size_t(value)].born = int32_t(log_->operations.size()) - 1;
        uses_.births.push_back(value);
        uses_.allocations[size_t(storage->house()->allocation)].value = value;
        storage->house()->allocation = -1;
    }
    born_.clear();
}

/// Its size is that of the sequence of its blocks, each laid into the first gap.
void StepBudget::measure_workspace() {
    std::vector<StepAllocation>& all = uses_.allocations;
    std::vector<int> slots(all.size(), 0);
    constexpr int64_t endless = int64_t(1) << 60;
    std::vector<AddressRanges> ranges(threads_.size() + 1, AddressRanges(endless));
    std::vector<int64_t> places(all.size(), -1);
    for (const Event& event : events_) {
        const auto i = size_t(event.allocation < 0 ? ~event.allocation : event.allocation);
        if (all[i].value >= 0) continue;
        if (event.allocation < 0) {
            if (places[i] >= 0) ranges[size_t(slots[i])].give(places[i]);
            continue;
        }
        slots[i] = event.slot;
        places[i] = ranges[size_t(event.slot)].take_first(all[i].nbytes);
        int64_t& most = event.slot ? running_.piece_bytes : running_.workspace_bytes;
        most = std::max(most, places[i] + all[i].nbytes);
    }
    // What threads allocate has no order.
    std::vector<StepAllocation> of_caller;
    for (size_t i = 0; i < all.size(); ++i)
        if (slots[i] == 0) of_caller.push_back(all[i]);
    all = std::move(of_caller);
    events_.clear();
    threads_.clear();
}

/// Results of truths alone can be packed into bits, on the CPU.
void StepBudget::note_masks(const Call& call) {
    if (!device_.is_cpu()) return;
    for (int i = 0; i < call.op.outputs; ++i) {
        const T& made = call.out[size_t(i)];
        if (!made || made->dtype() != DType::bool_ || !made->storage()->house()) continue;
        StepValue& value = log_->values[size_t(value_of(*made->storage()))];
        if (value.born == int32_t(log_->operations.size()) - 1 && made->storage()->nbytes() == made->size())
            value.truths = made->size();
    }
}

}  // namespace accelera::tensora
