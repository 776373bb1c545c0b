// Simplification of captured programs: constants, common steps, dead steps.
#include <algorithm>
#include <map>
#include <string>

#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

using Memory = CapturedBuffer::Kind;

constexpr int64_t small_bytes = 65536;

/// How often each buffer is written by steps.
std::vector<int> writes_of(const CapturedProgram& program) {
    std::vector<int> count(program.buffers.size());
    for (const CapturedStep& step : program.steps)
        for (const CapturedOperand& output : step.outputs) ++count[size_t(output.buffer)];
    return count;
}

/// Buffers whose memory is seen after the call, or by Python in between.
bool is_seen(const CapturedBuffer& buffer) {
    return buffer.kept || (buffer.kind != Memory::computed && buffer.kind != Memory::constant);
}

/// Buffers that a result or a gradient stands for.
std::vector<char> given_out(const CapturedProgram& program) {
    std::vector<char> given(program.buffers.size());
    for (const CapturedResult& result : program.results) given[size_t(result.value.buffer)] = 1;
    for (const auto& part : program.parts)
        for (const CapturedGradient& gradient : part.gradients)
            if (gradient.value.buffer >= 0) given[size_t(gradient.value.buffer)] = 1;
    return given;
}

T tensor_of(const CapturedProgram& program, const CapturedOperand& operand) {
    return T(
        new Tensor(program.buffers[size_t(operand.buffer)].tensor->storage(), operand.layout, operand.dtype));
}

/// What the step computes, of constants.
T value_of(const CapturedProgram& program, const CapturedStep& step) {
    const GradMode off(false);
    const RunNow now;
    const AutocastPause as_given;
    std::vector<T> inputs;
    for (const CapturedOperand& input : step.inputs) inputs.push_back(tensor_of(program, input));
    return apply(*step.op, inputs, step.params);
}

template <typename Number>
void put(std::string& key, const Number& number) {
    // NOLINTNEXTLINE(bugprone-sizeof-expression): identities of objects are pointers
    key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put(std::string& key, const Dims& dims) {
    put(key, dims.size());
    for (const int64_t value : dims) put(key, value);
}

void put(std::string& key, const Params& params) {
    for (const Dims* dims : {&params.a, &params.b, &params.c}) put(key, *dims);
    put(key, params.x);
    put(key, params.y);
    put(key, params.dtype);
    put(key, params.flag);
    put(key, params.mode);
}

void put(std::string& key, const CapturedOperand& operand, int version) {
    put(key, operand.buffer);
    put(key, version);
    put(key, operand.layout.shape);
    put(key, operand.layout.strides);
    put(key, operand.layout.offset);
    put(key, operand.dtype);
}

}  // namespace

void fold_constants(CapturedProgram& program) {
    const std::vector<int> writes = writes_of(program);
    filter_steps(program, [&](size_t i) {
        const CapturedStep& step = program.steps[i];
        if (step.in_place || step.inputs.empty() || step.draw >= 0 || step.outputs.size() != 1) return true;
        int64_t read = 0;
        for (const CapturedOperand& input : step.inputs) {
            const CapturedBuffer& buffer = program.buffers[size_t(input.buffer)];
            if (buffer.kind != Memory::constant) return true;
            read += buffer.nbytes;
        }
        CapturedBuffer& made = program.buffers[size_t(step.outputs[0].buffer)];
        const bool alone = writes[size_t(step.outputs[0].buffer)] == 1 && !made.kept;
        if (!alone || made.nbytes > std::max(read, small_bytes)) return true;
        made.tensor = value_of(program, step);
        made.kind = Memory::constant;
        return false;
    });
}

namespace {

/// Calls `change` with each operand that stands for a result or gradient after step `i`.
template <typename Change>
void later_operands(CapturedProgram& program, size_t i, Change change) {
    for (CapturedResult& result : program.results) change(result.value);
    for (auto& part : program.parts)
        for (CapturedGradient& gradient : part.gradients)
            if (part.end > i && gradient.value.buffer >= 0) change(gradient.value);
    for (size_t k = i + 1; k < program.steps.size(); ++k)
        for (auto* operands : {&program.steps[k].inputs, &program.steps[k].outputs})
            for (CapturedOperand& operand : *operands) change(operand);
}

/// Whether the step computes all elements of a buffer anew, which nobody has seen before.
bool overwrites(const CapturedProgram& program, size_t i) {
    const CapturedStep& step = program.steps[i];
    if (!step.in_place || step.op->family != Family::elementwise) return false;
    const CapturedOperand& output = step.outputs[0];
    const CapturedBuffer& buffer = program.buffers[size_t(output.buffer)];
    const Dims& shape = output.layout.shape;
    if (buffer.kind != Memory::computed || !(output.layout.strides == strides_of(shape))) return false;
    if (output.layout.offset != 0 || shape.product() * size_of(output.dtype) != buffer.nbytes) return false;
    for (const auto& part : program.parts)
        for (const CapturedGradient& gradient : part.gradients)
            if (part.end <= i && gradient.value.buffer == output.buffer) return false;
    return true;
}

}  // namespace

void rename_overwritten(CapturedProgram& program) {
    for (size_t i = 0; i < program.steps.size(); ++i) {
        if (!overwrites(program, i)) continue;
        const int32_t before = program.steps[i].outputs[0].buffer;
        const auto made = int32_t(program.buffers.size());
        CapturedBuffer buffer{Memory::computed};
        buffer.nbytes = program.buffers[size_t(before)].nbytes;
        buffer.device = program.buffers[size_t(before)].device;
        buffer.kept = std::exchange(program.buffers[size_t(before)].kept, false);
        program.buffers.push_back(std::move(buffer));
        program.steps[i].in_place = false;
        program.steps[i].outputs[0].buffer = made;
        later_operands(program, i, [&](CapturedOperand& operand) {
            if (operand.buffer == before) operand.buffer = made;
        });
    }
}

void share_common_steps(CapturedProgram& program) {
    const std::vector<int> writes = writes_of(program);
    const std::vector<char> given = given_out(program);
    std::vector<int> version(program.buffers.size());
    std::vector<int32_t> stands_for(program.buffers.size());
    for (size_t i = 0; i < stands_for.size(); ++i) stands_for[i] = int32_t(i);
    std::map<std::string, std::vector<CapturedOperand>> known, known_to_all;
    size_t part = 0;
    filter_steps(program, [&](size_t i) {
        // Python may write to what is outside between the parts.
        for (; i >= program.parts[part].end; ++part) {
            for (size_t k = 0; k < version.size(); ++k)
                version[k] += program.buffers[k].kind != Memory::computed;
            if (part + 1 == program.first_alternative) known_to_all = known;
            if (part >= program.first_alternative) known = known_to_all;
        }
        CapturedStep& step = program.steps[i];
        for (CapturedOperand& input : step.inputs) input.buffer = stands_for[size_t(input.buffer)];
        bool shareable = !step.in_place;
        for (const CapturedOperand& output : step.outputs) {
            const auto buffer = size_t(output.buffer);
            shareable = shareable && writes[buffer] == 1 && !given[buffer];
            ++version[buffer];
        }
        if (!shareable) return true;
        std::string key;
        put(key, step.op);
        put(key, step.params);
        put(key, program.buffers[size_t(step.outputs[0].buffer)].device.index);
        for (const CapturedOperand& input : step.inputs) put(key, input, version[size_t(input.buffer)]);
        const auto [place, is_new] = known.emplace(std::move(key), step.outputs);
        if (is_new) return true;
        for (size_t k = 0; k < step.outputs.size(); ++k)
            stands_for[size_t(step.outputs[k].buffer)] = place->second[k].buffer;
        return false;
    });
}

void remove_dead_steps(CapturedProgram& program) {
    std::vector<char> read(program.buffers.size());
    for (size_t i = 0; i < read.size(); ++i) read[i] = is_seen(program.buffers[i]);
    std::vector<char> live(program.steps.size());
    for (size_t i = program.steps.size(); i-- > 0;) {
        const CapturedStep& step = program.steps[i];
        live[i] = std::any_of(step.outputs.begin(), step.outputs.end(),
                              [&](const CapturedOperand& output) { return read[size_t(output.buffer)]; });
        if (!live[i]) continue;
        for (const CapturedOperand& input : step.inputs) read[size_t(input.buffer)] = 1;
    }
    filter_steps(program, [&](size_t i) { return bool(live[i]); });
}

namespace {

bool writes_over_operand(const CapturedStep& step) {
    if (step.has_epilogue()) return false;
    return std::any_of(step.inputs.begin(), step.inputs.end(), [&](const CapturedOperand& input) {
        return std::any_of(step.outputs.begin(), step.outputs.end(),
                           [&](const CapturedOperand& output) { return output.buffer == input.buffer; });
    });
}

}  // namespace

std::string CapturedProgram::words() const {
    const auto operand = [&](const CapturedOperand& one) {
        constexpr const char* kinds[] = {"argument", "outside", "gradient", "constant", "t"};
        const CapturedBuffer& buffer = buffers[size_t(one.buffer)];
        const bool whole = one.layout.strides == strides_of(one.layout.shape);
        return text(kinds[int(buffer.kind)], one.buffer, ":", name_of(one.dtype), one.layout.shape,
                    whole ? "" : text(" strides ", one.layout.strides));
    };
    std::string result;
    for (size_t i = 0; i < steps.size(); ++i) {
        const CapturedStep& step = steps[i];
        std::string line;
        const auto is_product = [&](const CapturedOperand& one) {
            return step.has_epilogue() && one.buffer == step.outputs[0].buffer;
        };
        for (size_t k = 0; k < step.outputs.size(); ++k)
            if (k == 0 || !is_product(step.outputs[k])) line += (k ? ", " : "") + operand(step.outputs[k]);
        line += step.in_place || writes_over_operand(step) ? " <- " : " = ";
        if (step.has_epilogue()) line += text(step.op->name, " + ");
        line += step.fused ? fused_words(step) : step.op->name;
        line += '(';
        for (size_t k = 0; k < step.inputs.size(); ++k)
            if (k < step.own_inputs || !is_product(step.inputs[k]))
                line += (k ? ", " : "") + operand(step.inputs[k]);
        result += line + ")\n";
    }
    return result;
}

}  // namespace accelera::tensora
