// A step that follows its plan: places of blocks, and what is done between operations.
#include <algorithm>
#include <cstring>

#include "tensora/core/budget.h"

namespace accelera::tensora {

void StepBudget::depart(const std::string& why) {
    if (!follows_) return;
    follows_ = false;
    settle_transfers();
    report_.departure = text("operation ", log_->operations.size(), ": ", why);
}

bool StepBudget::matches(int32_t operation, const char* name) const {
    if (size_t(operation) >= plan_->log->operations.size()) return false;
    return std::strcmp(planned(operation).name, name) == 0 &&
           std::ranges::equal(plan_->log->reads(plan_->log->operations[size_t(operation)]), uses_.reads);
}

int64_t StepBudget::place_by_plan(House& house, int64_t nbytes, bool in_piece) {
    if (workspace_.operation < 0) return -1;
    if (in_piece) return place_in_workspace(house, nbytes, true);
    const auto allocations = plan_->log->allocations(plan_->log->operations[size_t(workspace_.operation)]);
    if (workspace_.next >= allocations.size() || allocations[workspace_.next].nbytes != nbytes) {
        depart(text(nbytes, " bytes were allocated that the plan does not have"));
        return -1;
    }
    const StepAllocation& wanted = allocations[workspace_.next++];
    if (wanted.value < 0) return place_in_workspace(house, nbytes, false);
    if (!follows_) return -1;
    int64_t place = -1;
    if (!rerunning_ && plan_->log->values[size_t(wanted.value)].freed == never) {
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
    const OperationForm& form = planned(operation);
    const int64_t nbytes = form.workspace_bytes + form.piece_bytes * thread_count();
    if (nbytes == 0) return;
    const int64_t place = take_planned(nbytes);
    if (place < 0) return;
    report_.peak_bytes = std::max(report_.peak_bytes, used_bytes());
    workspace_.place = place;
    workspace_.caller_bytes = form.workspace_bytes;
    workspace_.piece_bytes = form.piece_bytes;
    workspace_.caller.reset(form.workspace_bytes);
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

}  // namespace accelera::tensora
