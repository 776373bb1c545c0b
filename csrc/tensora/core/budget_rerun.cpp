// Operations of a step inside a budget that run again.
#include <algorithm>

#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/core/budget.h"

namespace accelera::tensora {

namespace {
/// Whether contents that are not at hand come back without computing anything.
bool is_stored(Storage& storage) { return storage.house()->slot >= 0 || storage.house()->packed; }
}  // namespace

void StepBudget::keep_recipe(const Call& call, int32_t operation) {
    Recipe recipe{&call.op, forms_.number_of(call.params), {}, {}};
    recipe.inputs.reserve(call.in.size());
    for (const T& input : call.in) {
        Storage& storage = *input->storage();
        const bool outside = !owns(storage) || log_->values[size_t(value_of(storage))].born < 0;
        recipe.inputs.push_back({value_of(storage), forms_.number_of(input->layout()),
                                 outside ? Ref<Storage>(&storage) : Ref<Storage>(), input->dtype()});
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
    if (!storage) fail(Kind::runtime, "[budget] an operation runs again, but what it reads is gone");
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
            inputs.push_back(T(new Tensor(storage, forms_.layout(input.layout), input.dtype)));
        }
        open_workspace(number);
        const GradMode off(false);
        const RunNow now;
        const AutocastPause as_given;
        const RoleScope role(Role::activation);
        const DeviceScope scope(device_);
        Call call{*recipe.op, inputs, forms_.params(recipe.params)};
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
        if (producer < 0) fail(Kind::runtime, "[budget] contents of a tensor cannot be computed again");
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
