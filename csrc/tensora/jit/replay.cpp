// Calls of a captured program: memory is brought to its steps, and the kernels run one after the other.
#include <algorithm>

#include "tensora/base/interrupt.h"
#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/core/basic_functions.h"
#include "tensora/core/fused_loop.h"
#include "tensora/jit/arguments.h"
#include "tensora/jit/fixed_memory.h"
#include "tensora/jit/replay_graphs.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;

namespace {

char* memory_of(Storage& storage) {
    return storage.device().is_cpu() ? storage.data() : storage.device_data();
}

char* memory_of(const Tensor& tensor) {
    return memory_of(*tensor.storage()) + tensor.layout().offset * size_of(tensor.dtype());
}

}  // namespace

/// A step with the tensors that it works on.
struct Replay::Bound {
    const CapturedStep& step;
    std::vector<T> inputs;
    std::array<T, 3> outputs;
    int n_outputs = 0;
    std::vector<T> stored;  ///< results of a fused loop
    Params params;

    explicit Bound(const CapturedStep& step) : step(step), params(step.params) {}

    /// A result of the operation, or of the loop.
    void add_output(const T& tensor) {
        const bool is_own = !step.fused || (step.has_epilogue() && !outputs[0]);
        if (!is_own) return stored.push_back(tensor);
        outputs[size_t(n_outputs++)] = tensor;
    }

    void run() const {
        const Device device = (n_outputs ? outputs[0] : stored[0])->device();
        const DeviceScope scope(device);
        if (step.has_epilogue()) return run_with_epilogue();
        if (step.fused) return step.fused->run(inputs, stored);
        Call call = made_call(inputs);
        if (device.is_cpu())
            step.op->cpu(call);
        else if (step.op->cuda)
            step.op->cuda(call);
        else
            run_on_host(call, device);
    }

  private:
    Call made_call(std::span<const T> its_inputs) const {
        Call call{*step.op, its_inputs, params};
        call.out = outputs;
        for (int i = 0; i < n_outputs; ++i)
            call.made[size_t(i)] = {outputs[size_t(i)]->shape(), outputs[size_t(i)]->dtype()};
        return call;
    }

    void run_with_epilogue() const {
        const std::span<const T> all(inputs);
        const auto run_range = step.fused->ranges(all.subspan(step.own_inputs), stored);
        const int64_t columns = outputs[0]->shape().back();
        const RowsDone rows_done = [&](int64_t begin, int64_t end) {
            run_range(begin * columns, end * columns);
        };
        Call call = made_call(all.first(step.own_inputs));
        call.rows_done = &rows_done;
        step.op->cpu(call);
    }

    void run_on_host(Call& call, Device device) const {
        compute_on_host(call, device);
        for (int i = 0; i < step.op->outputs; ++i) copy_elements(*call.out[size_t(i)], *outputs[size_t(i)]);
    }
};

Replay::Replay(std::shared_ptr<const CapturedProgram> program, bool graphs)
    : program_(std::move(program)), part_writes_(program_->parts.size()) {
    if (graphs && !program_->device.is_cpu() && cuda::has_graphs())
        graphs_ = std::make_unique<ReplayGraphs>(*program_);
    for (const CapturedBuffer& buffer : program_->buffers) {
        const bool has_memory = buffer.kind == Memory::outside || buffer.kind == Memory::constant;
        storages_.push_back(has_memory ? buffer.tensor->storage()
                                       : Storage::borrow(nullptr, buffer.nbytes, true, [] {}, buffer.device));
    }
    first_part_.assign(storages_.size(), program_->parts.size());
    size_t part = 0;
    for (const CapturedStep& step : program_->steps) {
        while (steps_.size() >= program_->parts[part].end) ++part;
        steps_.push_back(std::make_unique<Bound>(step));
        Bound& bound = *steps_.back();
        for (const CapturedOperand& input : step.inputs) bound.inputs.push_back(tensor_of(input));
        for (const CapturedOperand& output : step.outputs) {
            bound.add_output(tensor_of(output));
            const auto buffer = output.buffer;
            first_part_[size_t(buffer)] = std::min(first_part_[size_t(buffer)], part);
            part_writes_[part].push_back(buffer);
            const Memory kind = program_->buffers[size_t(buffer)].kind;
            if (kind != Memory::computed &&
                std::find(written_.begin(), written_.end(), buffer) == written_.end())
                written_.push_back(buffer);
        }
    }
    for (std::vector<int32_t>& writes : part_writes_) {
        std::sort(writes.begin(), writes.end());
        writes.erase(std::unique(writes.begin(), writes.end()), writes.end());
    }
}

Replay::~Replay() = default;

T Replay::tensor_of(const CapturedOperand& operand) {
    return T(new Tensor(storages_[size_t(operand.buffer)], operand.layout, operand.dtype));
}

bool Replay::fits(const std::vector<T>& arguments) const {
    const auto leaf_of = [&](const T& leaf, int32_t argument) {
        return argument < 0 ? leaf : arguments[size_t(argument)];
    };
    for (size_t i = 0; i < storages_.size(); ++i) {
        const CapturedBuffer& buffer = program_->buffers[i];
        if (buffer.kind == Memory::outside && !(buffer.tensor->storage() == storages_[i])) return false;
        if (buffer.kind != Memory::gradient) continue;
        const T& grad = collected_gradient(*leaf_of(buffer.tensor, buffer.argument));
        if (!grad || !grad->contiguous() || grad->size() * size_of(grad->dtype()) != buffer.nbytes)
            return false;
    }
    for (const CapturedGradientRead& read : program_->gradient_reads)
        if (read.is_none != !collected_gradient(*leaf_of(read.leaf, read.argument))) return false;
    for (const CapturedProgram::Part& part : program_->parts)
        for (const CapturedGradient& gradient : part.gradients)
            if (gradient.was_none && collected_gradient(*leaf_of(gradient.leaf, gradient.argument)))
                return false;
    return !shares_memory(arguments) && program_->reads_hold();
}

/// Whether the program assumes an argument and another buffer to be apart that are not.
bool Replay::shares_memory(const std::vector<T>& arguments) const {
    for (size_t i = 0; i < storages_.size(); ++i) {
        const CapturedBuffer& buffer = program_->buffers[i];
        T tensor = buffer.kind == Memory::outside ? buffer.tensor : T();
        if (buffer.kind == Memory::gradient)
            tensor = collected_gradient(
                *(buffer.argument < 0 ? buffer.tensor : arguments[size_t(buffer.argument)]));
        if (!tensor) continue;
        for (const T& argument : arguments)
            if (argument->storage() == tensor->storage() || may_overlap(*argument, *tensor)) return true;
    }
    return false;
}

bool CapturedProgram::reads_hold() const {
    return std::all_of(reads.begin(), reads.end(),
                       [](const CapturedRead& read) { return bytes_of(read.tensor) == read.bytes; });
}

void Replay::begin(const std::vector<T>& arguments, const std::vector<std::pair<uint64_t, uint64_t>>& draws) {
    arguments_ = arguments;
    drop_gradients();
    kept_.assign(storages_.size(), {});
    const RoleScope role(Role::activation);
    take_fixed_memory();
    take_arena();
    for (size_t i = 0; i < storages_.size(); ++i) {
        const CapturedBuffer& buffer = program_->buffers[i];
        if (buffer.kind == Memory::gradient) {
            const T& leaf = buffer.argument < 0 ? buffer.tensor : arguments[size_t(buffer.argument)];
            kept_[i] = collected_gradient(*leaf)->storage();
            bring(i, memory_of(*collected_gradient(*leaf)));
        } else if (buffer.kind == Memory::computed && !buffer.kept && program_->places[i] >= 0) {
            storages_[i]->set_data(place_of(i));
        }
    }
    bring_arguments(0);
    for (const int32_t buffer : written_) settle_readers(*seen_storage(size_t(buffer)));
    for (const auto& bound : steps_) {
        const int32_t draw = bound->step.draw;
        if (draw < 0) continue;
        const auto& [seed, number] = draws[size_t(draw)];
        bound->params.b = {int64_t(seed), int64_t(number)};
    }
    part_ = step_ = 0;
}

void Replay::take_fixed_memory() {
    if (!graphs_ || !graphs_->has_any()) return fixed_.reset();
    if (fixed_) return fixed_->begin();
    try {
        fixed_ = std::make_unique<FixedMemory>(*program_);
    } catch (const Error& error) {
        if (error.kind != Kind::memory) throw;
        graphs_.reset();  // without them a call needs less
    }
}

void Replay::take_arena() {
    const ArenaPlan& plan = program_->arena;
    const int64_t first = plan.border ? bytes_of_block(plan.border) : 0;
    {
        const DeviceScope scope(cpu);
        arena_ = {first ? Storage::allocate(plan.border) : Ref<Storage>(),
                  plan.nbytes > first ? Storage::allocate(plan.nbytes - first) : Ref<Storage>()};
    }
    const DeviceScope scope(program_->device);
    if (fixed_)
        device_arena_ = fixed_->block();
    else if (program_->device_arena.nbytes > 0)
        device_arena_ = Storage::allocate(program_->device_arena.nbytes);
}

/// Place of a buffer in its arena.
char* Replay::place_of(size_t buffer) const {
    const int64_t place = program_->places[buffer], border = program_->arena.border;
    if (!program_->buffers[buffer].device.is_cpu()) return device_arena_->device_data() + place;
    return place < border ? arena_[0]->data() + place : arena_[1]->data() + place - border;
}

/// What was done with the device's memory on other streams comes before what comes now.
void Replay::order_streams() const {
    if (program_->device.is_cpu()) return;
    if (device_arena_) device_arena_->device_data();
    for (size_t i = 0; i < storages_.size(); ++i) {
        const Ref<Storage> storage = seen_storage(i);
        if (!storage->device().is_cpu()) storage->device_data();
    }
}

/// Memory of this call for a buffer that callers see.
void Replay::bring(size_t buffer, char* memory) {
    char* const copy = fixed_ ? fixed_->copy_of(buffer) : nullptr;
    if (copy) fixed_->set_seen(buffer, memory);
    storages_[buffer]->set_data(copy ? copy : memory);
}

void Replay::bring_arguments(size_t first) {
    for (size_t i = 0; i < storages_.size(); ++i) {
        const CapturedBuffer& buffer = program_->buffers[i];
        const auto argument = size_t(buffer.argument);
        if (buffer.kind == Memory::argument && argument >= first && argument < arguments_.size() &&
            arguments_[argument])
            bring(i,
                  memory_of(*arguments_[argument]) - buffer.before * size_of(arguments_[argument]->dtype()));
    }
}

void Replay::add_arguments(const std::vector<T>& arguments) {
    const size_t first = arguments_.size();
    arguments_.insert(arguments_.end(), arguments.begin(), arguments.end());
    bring_arguments(first);
}

void Replay::skip_part(size_t n_arguments) {
    arguments_.resize(arguments_.size() + n_arguments);
    step_ = program_->parts[part_++].end;
}

/// Memory for the results and gradients that a part begins to write.
void Replay::bring_kept(size_t part) {
    for (size_t i = 0; i < storages_.size(); ++i) {
        const CapturedBuffer& buffer = program_->buffers[i];
        if (buffer.kind != Memory::computed || !buffer.kept || first_part_[i] != part) continue;
        const DeviceScope scope(buffer.device);
        kept_[i] = Storage::allocate(buffer.nbytes);
        bring(i, memory_of(*kept_[i]));
    }
}

/// Memory of a buffer that others than the program see.
Ref<Storage> Replay::seen_storage(size_t buffer) const {
    const CapturedBuffer& one = program_->buffers[buffer];
    if (one.kind == Memory::argument)
        return size_t(one.argument) < arguments_.size() && arguments_[size_t(one.argument)]
                   ? arguments_[size_t(one.argument)]->storage()
                   : storages_[buffer];
    return kept_[buffer] ? kept_[buffer] : storages_[buffer];
}

/// Gradients that the program replaces without reading them.
void Replay::drop_gradients() {
    const auto& buffers = program_->buffers;
    for (const CapturedGradient& gradient : program_->parts[0].gradients) {
        const bool read = std::any_of(buffers.begin(), buffers.end(), [&](const CapturedBuffer& buffer) {
            return buffer.kind == Memory::gradient &&
                   (buffer.argument >= 0 ? buffer.argument == gradient.argument
                                         : buffer.tensor == gradient.leaf);
        });
        if (read) continue;
        const T& leaf = gradient.argument < 0 ? gradient.leaf : arguments_[size_t(gradient.argument)];
        if (leaf->gradient()) leaf->gradient()->grad.reset();
    }
}

void Replay::run_part() {
    order_streams();
    bring_kept(part_);
    const CapturedProgram::Part& part = program_->parts[part_];
    for (size_t i = 0; fixed_ && i < storages_.size(); ++i) fixed_->copy_in(i, seen_storage(i)->version());
    run_steps(part);
    if (fixed_)
        for (const int32_t buffer : part_writes_[part_]) fixed_->copy_out(size_t(buffer));
    ++part_;
    note_written();
    set_gradients(part);
}

void Replay::run_steps(const CapturedProgram::Part& part) {
    const GradMode off(false);
    const RunNow now;
    const AutocastPause as_given;
    if (graphs_) {
        graphs_->run(part_, bool(fixed_),
                     {[this](size_t i) { steps_[i]->run(); }, [this] { order_streams(); }});
        step_ = part.end;
        return;
    }
    for (; step_ < part.end; ++step_) {
        if (step_ % 16 == 0) check_interrupt();
        steps_[step_]->run();
    }
}

void Replay::note_written() {
    for (const int32_t buffer : written_) seen_storage(size_t(buffer))->bump();
    versions_.clear();
    for (size_t i = 0; i < storages_.size(); ++i) {
        versions_.push_back(seen_storage(i)->version());
        if (fixed_) fixed_->note_version(i, versions_.back());
    }
}

int64_t Replay::graph_steps() const { return graphs_ ? graphs_->n_steps() : 0; }
int64_t Replay::graph_bytes() const {
    return (graphs_ ? graphs_->nbytes() : 0) + (fixed_ ? fixed_->block()->nbytes() : 0);
}

void Replay::check_unchanged() const {
    for (size_t i = step_; i < program_->parts[part_].end; ++i)
        for (const CapturedOperand& input : program_->steps[i].inputs) {
            const auto buffer = size_t(input.buffer);
            const CapturedBuffer& one = program_->buffers[buffer];
            const bool later = one.kind == Memory::argument && size_t(one.argument) >= arguments_.size();
            if (later || first_part_[buffer] == part_ || seen_storage(buffer)->version() == versions_[buffer])
                continue;
            fail(Kind::runtime, "[jit] a tensor of shape ", input.layout.shape.words(),
                 " that the backward pass reads was written in place since the function ran; write to it "
                 "after "
                 "the backward pass");
        }
}

T Replay::result_of(const CapturedOperand& operand) const {
    return T(new Tensor(kept_[size_t(operand.buffer)], operand.layout, operand.dtype));
}

void Replay::set_gradients(const CapturedProgram::Part& part) {
    for (const CapturedGradient& gradient : part.gradients) {
        const T& leaf = gradient.argument < 0 ? gradient.leaf : arguments_[size_t(gradient.argument)];
        T value;
        if (gradient.value.buffer >= 0) {
            value = result_of(gradient.value);
            value->storage()->set_role(Role::gradient);
        }
        leaf->make_gradient().grad = std::make_shared<T>(value);
    }
}

std::vector<T> Replay::results(size_t first, size_t end) {
    std::vector<T> results;
    for (size_t i = first; i < end; ++i) {
        const CapturedResult& result = program_->results[i];
        const CapturedBuffer& buffer = program_->buffers[size_t(result.value.buffer)];
        if (result.argument >= 0) {
            results.push_back(arguments_[size_t(result.argument)]);
        } else if (result.tensor) {
            results.push_back(result.tensor);
        } else if (buffer.kind == Memory::argument) {
            const T& argument = arguments_[size_t(buffer.argument)];
            Layout layout = result.value.layout;
            layout.offset += argument->layout().offset - buffer.before;
            results.push_back(argument->alias(layout));
        } else {
            results.push_back(result_of(result.value));
        }
    }
    return results;
}

void Replay::end() {
    arguments_.clear();
    kept_.clear();
    arena_ = {};
    device_arena_.reset();
}

}  // namespace accelera::tensora
