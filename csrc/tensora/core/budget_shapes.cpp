// A step that does not fit its budget: it goes on for its shapes alone, so that the whole of it can be
// planned. Operations that lack contents are recorded and not run, nothing that existed before is written,
// and reading contents that were not computed raises. The step is refused when it ends, with the floor of its
// plans.
#include <algorithm>

#include "tensora/core/basic_functions.h"
#include "tensora/core/budget.h"

namespace accelera::tensora {

namespace {

/// Tensors of a few bytes, such as numbers, are made in any case: callers write them outside of operations.
constexpr int64_t most_small = 512;

/// Bytes of a block for a tensor that a kernel computes in; halves are computed as float32.
int64_t computed_bytes(int64_t size, DType dtype) {
    return block_bytes_of(size * (is(dtype, halves) ? 4 : size_of(dtype)));
}

/// Bound of the memory that an operation's kernel allocates and frees again.
int64_t workspace_bound(const Call& call) {
    if (call.op.workspace) return call.op.workspace(call);
    if (call.op.family == Family::creation) return 0;
    if (call.op.family != Family::elementwise) return tensor_bytes(call) + 1024;
    const DType computed = call.op.loops ? loop_type(call) : call.made[0].dtype;
    int64_t converted = 0;
    for (const T& tensor : call.in)
        if (tensor->dtype() != computed) converted += computed_bytes(tensor->size(), computed);
    return converted;
}

}  // namespace

int64_t tensor_bytes(const Call& call) {
    int64_t sum = 0;
    for (const T& tensor : call.in) sum += computed_bytes(tensor->size(), tensor->dtype());
    for (int i = 0; i < call.op.outputs; ++i)
        sum += computed_bytes(call.made[size_t(i)].shape.product(), call.made[size_t(i)].dtype);
    return sum;
}

void StepBudget::bound_workspace() {
    running_.workspace_bytes = std::max(running_.workspace_bytes, workspace_bound(*call_));
}

void StepBudget::note_refusal(const std::string& why) {
    if (!report_.refusal.empty()) return;
    report_.refusal = why;
    depart("the step does not fit");
}

void StepBudget::refuse(int64_t nbytes) {
    if (report_.refusal.empty()) {
        int64_t pinned = 0;
        for (Storage* storage : residents_) pinned += storage->block_bytes();
        report_.needed_bytes = std::max(pinned, used_bytes() + nbytes > room_ ? 0 : room_) + nbytes;
    }
    throw Refusal(text("'", running_.name, "' needs ", nbytes, " bytes more; ", used_bytes(),
                       " of the step's ", room_,
                       " are in use by tensors that it reads or that cannot leave, and the largest gap has ",
                       arena_.ranges.largest_gap()));
}

void StepBudget::refuse_contents(const Storage& storage) const {
    if (here() == this && !report_.refusal.empty())
        fail(Kind::memory,
             "[budget] contents of a tensor are read that could not be computed: ", report_.refusal);
    const bool missing = storage.house()->contents == Contents::missing;
    fail(Kind::runtime, "[budget] the contents of a tensor ",
         missing ? "were never computed" : "cannot be read before the step ends",
         ", because its step did not fit the budget; run the step again in a larger one");
}

void StepBudget::refuse_withheld() {
    const StepBudget* const budget = here();
    fail(Kind::memory, "[budget] a tensor is read whose update could not be computed: ",
         budget ? budget->report_.refusal : "its step did not fit");
}

bool StepBudget::can_compute(std::initializer_list<std::span<const T>> operands) const {
    for (const auto& some : operands)
        for (const T& tensor : some) {
            const Storage& storage = *tensor->storage();
            if (owns(storage) ? storage.house()->contents != Contents::computed : !storage.at_hand_)
                return false;
        }
    return true;
}

void StepBudget::require_fit(int64_t nbytes) {
    const Lock lock(*this);
    if (nbytes <= std::max(room_, most_small) || !report_.refusal.empty()) return;
    running_ = {.name = "create"};
    refuse(nbytes);
}

/// A place for a new storage, or false: it has none, and no contents but those of a few bytes.
bool StepBudget::find_place(Storage& storage, int64_t nbytes) {
    House& house = *storage.house();
    const bool small = creates_ && storage.nbytes() <= most_small;
    const bool may_lack = depth_ == 1 && !kernel_runs_ && !rerunning_ && !packing_ && device_.is_cpu();
    if (!may_lack || computes_) {
        try {
            house.place = place_anywhere(nbytes);
            return true;
        } catch (const Refusal& refusal) {
            if (!may_lack) throw;
            note_refusal(refusal.reason);
        }
    }
    if (small)
        house.small = std::make_unique<char[]>(size_t(most_small));
    else
        house.contents = Contents::missing;
    computes_ = false;
    return false;
}

void StepBudget::run_kernel(const std::function<void()>& kernel) {
    if (depth_ > 1) return kernel();
    if (!computes_) return lose_results();
    movable_ = false;
    kernel_runs_ = true;
    try {
        kernel();
    } catch (const Refusal& refusal) {
        kernel_runs_ = false;
        if (!device_.is_cpu()) throw;
        note_refusal(refusal.reason);
        lose_results();
        return;
    } catch (...) {
        kernel_runs_ = false;
        throw;
    }
    kernel_runs_ = false;
}

/// The kernel has not filled the results of its operation.
void StepBudget::lose_results() {
    const Lock lock(*this);
    computes_ = false;
    for (Storage* storage : born_) {
        House& house = *storage->house();
        house.contents = Contents::missing;
        if (house.index >= 0) drop(*storage);
    }
}

void StepBudget::require_contents() {
    if (!computes_)
        fail(Kind::memory,
             "[budget] an operation needs contents that could not be computed: ", report_.refusal);
}

/// A write that does not take place: the contents are another tensor's from here on.
void StepBudget::withhold(Storage& storage) {
    if (!owns(storage)) {
        if (!storage.at_hand_) return;
        storage.at_hand_ = false;
        withheld_outside_.emplace_back(&storage);
    } else if (storage.house()->contents == Contents::computed) {
        storage.house()->contents = Contents::withheld;
        storage.at_hand_ = false;
        withheld_.push_back(&storage);
    }
}

/// Tensors whose writes did not take place have the contents from before the refusal.
void StepBudget::return_withheld() {
    for (Storage* storage : withheld_) {
        House& house = *storage->house();
        house.contents = Contents::computed;
        storage->at_hand_ = device_.is_cpu() && storage->data_ && storage->is_here();
    }
    withheld_.clear();
    for (const Ref<Storage>& storage : withheld_outside_) storage->at_hand_ = true;
    withheld_outside_.clear();
}

/// Bytes of tensors that outlive the step, with those that were not computed.
int64_t StepBudget::outliving_bytes() const {
    int64_t sum = 0;
    for (const Storage* storage : residents_) sum += storage->block_bytes();
    for (const Storage* storage : filed_) sum += storage->block_bytes();
    for (const Held& held : held_)
        if (held.storage && owns(*held.storage) && !held.storage->data_ && held.storage->house()->slot < 0)
            sum += held.storage->block_bytes();
    return sum;
}

}  // namespace accelera::tensora
