// Calls of a captured program: memory is brought to its steps, and the kernels run one after the other.
#include <algorithm>

#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/functions.h"
#include "tensora/core/fused_loop.h"
#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

using Memory = CapturedBuffer::Kind;

const T& gradient_tensor(const T& leaf) {
    static const T none;
    return leaf->gradient() && leaf->gradient()->grad ? *leaf->gradient()->grad : none;
}

}  // namespace

/// A step with the tensors that it works on.
struct Replay::Bound {
    const CapturedStep& step;
    std::vector<T> inputs;
    std::array<T, 3> outputs;
    std::vector<T> stored;  ///< results of a fused loop
    Params params;

    explicit Bound(const CapturedStep& step) : step(step), params(step.params) {}

    void run() const {
        if (step.fused) {
            step.fused->run(inputs, stored);
            return;
        }
        Call call{*step.op, inputs, params};
        call.out = outputs;
        for (int i = 0; i < step.op->outputs; ++i)
            call.made[size_t(i)] = {outputs[size_t(i)]->shape(), outputs[size_t(i)]->dtype()};
        step.op->cpu(call);
    }
};

Replay::Replay(std::shared_ptr<const CapturedProgram> program) : program_(std::move(program)) {
    for (const CapturedBuffer& buffer : program_->buffers) {
        const bool has_memory = buffer.kind == Memory::outside || buffer.kind == Memory::constant;
        storages_.push_back(has_memory ? buffer.tensor->storage() : Storage::movable(buffer.nbytes));
    }
    for (const CapturedStep& step : program_->steps) {
        steps_.push_back(std::make_unique<Bound>(step));
        Bound& bound = *steps_.back();
        for (const CapturedOperand& input : step.inputs) bound.inputs.push_back(tensor_of(input));
        for (size_t i = 0; i < step.outputs.size(); ++i) {
            const T tensor = tensor_of(step.outputs[i]);
            step.fused ? bound.stored.push_back(tensor) : void(bound.outputs[i] = tensor);
            const auto buffer = step.outputs[i].buffer;
            const Memory kind = program_->buffers[size_t(buffer)].kind;
            if (kind != Memory::computed &&
                std::find(written_.begin(), written_.end(), buffer) == written_.end())
                written_.push_back(buffer);
        }
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
        const T& grad = gradient_tensor(leaf_of(buffer.tensor, buffer.argument));
        if (!grad || !grad->contiguous() || grad->size() * size_of(grad->dtype()) != buffer.nbytes)
            return false;
    }
    for (const CapturedProgram::Part& part : program_->parts)
        for (const CapturedGradient& gradient : part.gradients)
            if (gradient.was_none && gradient_tensor(leaf_of(gradient.leaf, gradient.argument))) return false;
    return true;
}

void Replay::begin(const std::vector<T>& arguments,
                   const std::vector<std::pair<uint64_t, uint64_t>>& draws) {
    arguments_ = arguments;
    drop_gradients();
    kept_.assign(storages_.size(), {});
    arena_ = program_->arena_bytes ? Storage::allocate(program_->arena_bytes) : Ref<Storage>();
    for (size_t i = 0; i < storages_.size(); ++i) {
        const CapturedBuffer& buffer = program_->buffers[i];
        Storage& storage = *storages_[i];
        if (buffer.kind == Memory::argument) {
            storage.set_data(arguments[size_t(buffer.argument)]->bytes());
        } else if (buffer.kind == Memory::gradient) {
            const T& leaf = buffer.argument < 0 ? buffer.tensor : arguments[size_t(buffer.argument)];
            kept_[i] = gradient_tensor(leaf)->storage();
            storage.set_data(gradient_tensor(leaf)->bytes());
        } else if (buffer.kind == Memory::computed && buffer.kept) {
            kept_[i] = Storage::allocate(buffer.nbytes);
            storage.set_data(kept_[i]->data());
        } else if (buffer.kind == Memory::computed && program_->places[i] >= 0) {
            storage.set_data(arena_->data() + program_->places[i]);
        }
    }
    for (const int32_t buffer : written_) {
        const CapturedBuffer& one = program_->buffers[size_t(buffer)];
        const bool given = one.kind == Memory::argument;
        settle_readers(given ? *arguments[size_t(one.argument)]->storage() : *storages_[size_t(buffer)]);
    }
    for (const auto& bound : steps_) {
        const int32_t draw = bound->step.draw;
        if (draw < 0) continue;
        const auto& [seed, number] = draws[size_t(draw)];
        bound->params.b = {int64_t(seed), int64_t(number)};
    }
    part_ = step_ = 0;
}

/// Gradients that the program replaces without reading them.
void Replay::drop_gradients() {
    const auto& buffers = program_->buffers;
    for (const CapturedGradient& gradient : program_->parts[0].gradients) {
        const bool read = std::any_of(buffers.begin(), buffers.end(), [&](const CapturedBuffer& buffer) {
            return buffer.kind == Memory::gradient &&
                   (buffer.argument >= 0 ? buffer.argument == gradient.argument : buffer.tensor == gradient.leaf);
        });
        if (read) continue;
        const T& leaf = gradient.argument < 0 ? gradient.leaf : arguments_[size_t(gradient.argument)];
        if (leaf->gradient()) leaf->gradient()->grad.reset();
    }
}

void Replay::run_part() {
    const CapturedProgram::Part& part = program_->parts[part_++];
    {
        const GradMode off(false);
        const RunNow now;
        const AutocastPause as_given;
        for (; step_ < part.end; ++step_) {
            if (step_ % 16 == 0) check_interrupt();
            steps_[step_]->run();
        }
    }
    note_written();
    set_gradients(part);
}

void Replay::note_written() {
    for (const int32_t buffer : written_) {
        const CapturedBuffer& one = program_->buffers[size_t(buffer)];
        if (one.kind == Memory::argument)
            arguments_[size_t(one.argument)]->storage()->bump();
        else if (one.kind == Memory::gradient)
            kept_[size_t(buffer)]->bump();
        else
            storages_[size_t(buffer)]->bump();
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

std::vector<T> Replay::end() {
    std::vector<T> results;
    for (const CapturedResult& result : program_->results) {
        const CapturedBuffer& buffer = program_->buffers[size_t(result.value.buffer)];
        if (result.argument >= 0) {
            results.push_back(arguments_[size_t(result.argument)]);
        } else if (result.tensor) {
            results.push_back(result.tensor);
        } else if (buffer.kind == Memory::argument) {
            const T& argument = arguments_[size_t(buffer.argument)];
            Layout layout = result.value.layout;
            layout.offset += argument->layout().offset;
            results.push_back(argument->alias(layout));
        } else {
            results.push_back(result_of(result.value));
        }
    }
    abandon();
    return results;
}

void Replay::abandon() {
    arguments_.clear();
    kept_.clear();
    arena_.reset();
}

}  // namespace accelera::tensora
