#include "tensora/jit/capture.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tensora/core/autograd.h"
#include "tensora/core/basic_functions.h"
#include "tensora/jit/arguments.h"

namespace accelera::tensora {

namespace {

std::atomic<uint32_t> captures{0};

using Memory = CapturedBuffer::Kind;

bool is_random(const Op& op) { return std::strncmp(op.name, "random_", 7) == 0; }

}  // namespace

Capture::Capture(const std::vector<T>& arguments)
    : number_(++captures), program_(std::make_shared<CapturedProgram>()) {
    add_arguments(arguments);
    thread_state.capture = this;
}

int32_t Capture::add_buffer(CapturedBuffer buffer, Device device) {
    Device& known = program_->device;
    if (!device.is_cpu() && !known.is_cpu() && !(device == known))
        fail(Kind::not_implemented, "[jit] the function computes on ", name_of(known), " and ",
             name_of(device), "; a captured function uses one CUDA device: capture one for each");
    if (!device.is_cpu()) known = device;
    buffer.device = device;
    program_->buffers.push_back(std::move(buffer));
    return int32_t(program_->buffers.size()) - 1;
}

void Capture::add_arguments(const std::vector<T>& arguments) {
    for (const T& argument : arguments) {
        Storage& storage = *argument->storage();
        arguments_.push_back(argument);
        note_leaf(argument);
        if (storage.captured.record == number_ && storage.captured.place >= 0) continue;
        // Arguments that share a storage share a buffer, which spans the elements of all of them.
        ElementRange range = elements_of(argument->layout());
        for (const T& other : arguments)
            if (other->storage() == argument->storage()) range.include(elements_of(other->layout()));
        CapturedBuffer buffer{Memory::argument};
        buffer.nbytes = (range.end - range.begin) * size_of(argument->dtype());
        buffer.before = argument->layout().offset - range.begin;
        buffer.argument = int32_t(arguments_.size()) - 1;
        storage.captured = {number_, add_buffer(std::move(buffer), storage.device())};
    }
}

Capture::~Capture() {
    if (thread_state.capture == this) thread_state.capture = nullptr;
}

int32_t Capture::buffer_of(const T& tensor) {
    Storage& storage = *tensor->storage();
    constexpr int32_t unknown = -1;
    const int32_t place = storage.captured.record == number_ ? storage.captured.place : unknown;
    if (place >= 0) return place;
    const bool is_born = storage.captured.record == number_;
    CapturedBuffer buffer{is_born ? Memory::constant : Memory::outside};
    buffer.nbytes = storage.nbytes();
    buffer.tensor = tensor->gradient() && tensor->gradient()->required ? tensor : tensor->detach();
    for (size_t i = 0; i < leaves_.size() && !is_born; ++i) {
        const T& grad = collected_gradient(*leaves_[i]);
        if (!grad || !(grad->storage() == tensor->storage())) continue;
        const auto argument = std::find(arguments_.begin(), arguments_.end(), leaves_[i]);
        buffer.kind = Memory::gradient;
        buffer.tensor = leaves_[i];
        buffer.argument = argument == arguments_.end() ? -1 : int32_t(argument - arguments_.begin());
    }
    storage.captured = {number_, add_buffer(std::move(buffer), storage.device())};
    return storage.captured.place;
}

/// The buffer of arguments begins with the lowest element of theirs.
CapturedOperand Capture::operand_of(const T& tensor) {
    CapturedOperand operand{buffer_of(tensor), tensor->layout(), tensor->dtype()};
    const CapturedBuffer& buffer = program_->buffers[size_t(operand.buffer)];
    if (buffer.kind == Memory::argument)
        operand.layout.offset -= arguments_[size_t(buffer.argument)]->layout().offset - buffer.before;
    note_leaf(tensor);
    return operand;
}

int32_t Capture::computed(Storage& storage) {
    CapturedBuffer buffer{Memory::computed};
    buffer.nbytes = storage.nbytes();
    storage.captured = {number_, add_buffer(std::move(buffer), storage.device())};
    return storage.captured.place;
}

CapturedOperand Capture::copied(const CapturedOperand& operand) {
    CapturedStep step{&op_named("cast"), {}, {operand}, {}};
    step.params.dtype = operand.dtype;
    CapturedBuffer buffer{Memory::computed};
    const Dims& shape = operand.layout.shape;
    buffer.nbytes = shape.product() * size_of(operand.dtype);
    const Device device = program_->buffers[size_t(operand.buffer)].device;
    step.outputs.push_back(
        {add_buffer(std::move(buffer), device), {shape, strides_of(shape), 0}, operand.dtype});
    program_->steps.push_back(step);
    return step.outputs[0];
}

void Capture::born(Storage& storage) { storage.captured = {number_, -1}; }

void Capture::note_written(int32_t buffer) {
    written_.resize(program_->buffers.size());
    written_[size_t(buffer)] = 1;
}

void Capture::note_leaf(const T& tensor) {
    if (!tensor->gradient() || !tensor->gradient()->required) return;
    const T& gradient = collected_gradient(*tensor);
    if (leaf_states_.emplace(tensor.get(), LeafState{false, false, gradient, bool(gradient)}).second)
        leaves_.push_back(tensor);
}

void Capture::gradient_set(const T& leaf) {
    if (leaf_states_.emplace(leaf.get(), LeafState{}).second) leaves_.push_back(leaf);
    LeafState& state = leaf_states_.at(leaf.get());
    state.ever_set = state.set_in_part = true;
}

int32_t Capture::draw_of(const Op& op, const Params& params) const {
    if (!is_random(op)) return -1;
    for (size_t i = draws_.size(); i-- > 0;)
        if (int64_t(draws_[i].first) == params.b[0] && int64_t(draws_[i].second) == params.b[1])
            return int32_t(i);
    return -1;
}

void Capture::add(const Call& call, int64_t workspace_bytes) {
    CapturedStep step{&call.op, call.params, {}, {}};
    for (const T& input : call.in) step.inputs.push_back(operand_of(input));
    for (int i = 0; i < call.op.outputs; ++i) {
        const Tensor& out = *call.out[size_t(i)];
        step.outputs.push_back({computed(*out.storage()), out.layout(), out.dtype()});
    }
    step.draw = draw_of(call.op, call.params);
    step.workspace_bytes = workspace_bytes;
    program_->steps.push_back(std::move(step));
}

void Capture::add_write(const Op& op, std::span<const T> inputs, const Params& params, const Tensor& target) {
    CapturedStep step{&op, params, {}, {}};
    for (const T& input : inputs) step.inputs.push_back(operand_of(input));
    CapturedOperand written = operand_of(T(const_cast<Tensor*>(&target)));
    CapturedBuffer& buffer = program_->buffers[size_t(written.buffer)];
    if (buffer.kind == Memory::constant) {
        // Each call begins with the elements that are there now.
        const CapturePause pause;
        const RunNow now;
        const T whole(new Tensor(target.storage(), {{buffer.nbytes}, {1}, 0}, DType::u8));
        buffer.tensor = copy(whole);
        CapturedStep fill{&op_named("cast"), {}, {{written.buffer, whole->layout(), DType::u8}}, {}};
        fill.params.dtype = DType::u8;
        fill.outputs.push_back({computed(*target.storage()), whole->layout(), DType::u8});
        for (CapturedOperand& input : step.inputs)
            if (input.buffer == written.buffer) input.buffer = fill.outputs[0].buffer;
        written.buffer = fill.outputs[0].buffer;
        program_->steps.push_back(std::move(fill));
    }
    note_written(written.buffer);
    step.outputs.push_back(written);
    step.in_place = true;
    program_->steps.push_back(std::move(step));
}

void Capture::gradient_read(const T& leaf) {
    note_leaf(leaf);
    const auto state = leaf_states_.find(leaf.get());
    if (state == leaf_states_.end() || state->second.ever_set) return;
    if (state->second.had_one != bool(collected_gradient(*leaf))) return;  // the function has made it
    const auto argument = std::find(arguments_.begin(), arguments_.end(), leaf);
    const bool is_outside = argument == arguments_.end();
    program_->gradient_reads.push_back({is_outside ? leaf : T(),
                                        is_outside ? -1 : int32_t(argument - arguments_.begin()),
                                        !state->second.had_one});
}

void Capture::refuse_read(const Tensor& tensor, const char* what) {
    const Storage::Recorded& captured = tensor.storage()->captured;
    if (captured.record != number_) return note_read(tensor);
    if (captured.place < 0) return;
    const Memory kind = program_->buffers[size_t(captured.place)].kind;
    const bool changed = size_t(captured.place) < written_.size() && written_[size_t(captured.place)];
    if (kind == Memory::outside && !changed) return note_read(tensor);
    if (kind != Memory::argument && kind != Memory::computed && kind != Memory::gradient && !changed) return;
    fail(Kind::runtime, "[jit] ", what, " needs elements of a tensor of shape ", tensor.shape().words(),
         " that each call computes anew; let the function return the tensor, and do this outside of it");
}

void Capture::note_read(const Tensor& tensor) {
    const CapturePause pause;
    const T alias = tensor.alias(tensor.layout());
    program_->reads.push_back({alias, bytes_of(alias)});
}

CapturedGradient Capture::gradient_of(const T& leaf) {
    CapturedGradient result;
    const auto argument = std::find(arguments_.begin(), arguments_.end(), leaf);
    if (argument == arguments_.end())
        result.leaf = leaf;
    else
        result.argument = int32_t(argument - arguments_.begin());
    if (const T& grad = collected_gradient(*leaf)) {
        const CapturePause pause;
        result.value = operand_of(grad);
        const LeafState& state = leaf_states_.at(leaf.get());
        result.was_none = !state.ever_set && !state.had_one;
    }
    return result;
}

void Capture::end_part() {
    std::vector<CapturedGradient> gradients;
    for (const T& leaf : std::vector<T>(leaves_)) {
        LeafState& state = leaf_states_.at(leaf.get());
        const T before = std::exchange(state.gradient, collected_gradient(*leaf));
        if (!std::exchange(state.set_in_part, false) && before == state.gradient) continue;
        CapturedGradient found = gradient_of(leaf);
        if (found.value.buffer >= 0) {
            const Memory kind = program_->buffers[size_t(found.value.buffer)].kind;
            if (kind == Memory::gradient || kind == Memory::outside) continue;
            if (kind != Memory::computed) found.value = copied(found.value);
            program_->buffers[size_t(found.value.buffer)].kept = true;
        }
        gradients.push_back(std::move(found));
    }
    program_->parts.push_back({program_->steps.size(), std::move(gradients)});
}

std::shared_ptr<CapturedProgram> Capture::finish(const std::vector<T>& results) {
    for (const T& tensor : results) {
        CapturedResult result;
        result.value = operand_of(tensor);
        Memory kind = program_->buffers[size_t(result.value.buffer)].kind;
        const auto argument = std::find(arguments_.begin(), arguments_.end(), tensor);
        if (argument != arguments_.end()) {
            result.argument = int32_t(argument - arguments_.begin());
        } else if (kind == Memory::outside) {
            result.tensor = tensor;
        } else if (kind == Memory::constant || kind == Memory::gradient) {
            result.value = copied(result.value);
            kind = Memory::computed;
        }
        if (kind == Memory::computed) program_->buffers[size_t(result.value.buffer)].kept = true;
        program_->results.push_back(std::move(result));
    }
    end_part();
    thread_state.capture = nullptr;
    leaves_.clear();
    return std::exchange(program_, nullptr);
}

void capture_call(Capture& capture, const Call& call, int64_t workspace_bytes) {
    capture.add(call, workspace_bytes);
}
void capture_birth(Capture& capture, Storage& storage) { capture.born(storage); }

}  // namespace accelera::tensora
