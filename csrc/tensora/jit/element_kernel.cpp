#include "tensora/jit/element_kernel.h"

#include <algorithm>
#include <cstring>

#include "tensora/core/basic_functions.h"
#include "tensora/cuda/kernels.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;

namespace {

/// Whether all elements of a constant operand are the same.
bool is_one_number(const Tensor& constant, const CapturedOperand& operand) {
    const int64_t each = size_of(operand.dtype);
    const char* const first = constant.storage()->data() + operand.layout.offset * each;
    const Layout& layout = operand.layout;
    if (layout.shape.size() != 1) return layout.shape.empty();
    for (int64_t i = 1; i < layout.shape[0]; ++i)
        if (std::memcmp(first, first + i * layout.strides[0] * each, size_t(each)) != 0) return false;
    return true;
}

}  // namespace

ElementKernel::ElementKernel(const std::string& name, int inputs, int outputs, Source source)
    : UserKernel(name, inputs, outputs, std::move(source)) {}

const ElementKernel::Body& ElementKernel::body(const std::vector<DType>& types) {
    {
        const std::lock_guard lock(mutex_);
        const auto known = bodies_.find(types);
        if (known != bodies_.end()) return known->second;
    }
    Body made = translated(*program({types}));
    const std::lock_guard lock(mutex_);
    return bodies_.emplace(types, std::move(made)).first->second;
}

ElementKernel::Body ElementKernel::translated(const CapturedProgram& program) const {
    Body body;
    std::vector<int> step_of(program.buffers.size(), -1);
    const auto source_of = [&](const CapturedOperand& operand) -> FusedLoop::Source {
        const CapturedBuffer& buffer = program.buffers[size_t(operand.buffer)];
        const Layout& layout = operand.layout;
        const bool whole = layout.offset == 0 && layout.strides == strides_of(layout.shape);
        const int step = step_of[size_t(operand.buffer)];
        if (step >= 0 && whole) return {step, -1};
        if (buffer.kind == Memory::argument && whole) return {-1, buffer.argument};
        if (buffer.kind == Memory::constant && is_one_number(*buffer.tensor, operand)) {
            body.constants.emplace_back(
                new Tensor(buffer.tensor->storage(), {{}, {}, layout.offset}, operand.dtype));
            return {-1, op().arity + int(body.constants.size()) - 1};
        }
        fail(Kind::type, "[kernel ", name(),
             "] a tensor from outside, or elements at other places, are read; a "
             "kernel computes with the elements that it is given: make the tensor an argument");
    };
    for (const CapturedStep& step : program.steps) {
        const ElementFormula formula = formula_of(step, true);
        if (!formula.loop)
            fail(Kind::type, "[kernel ", name(), "] ", step.op->name,
                 " is no operation on single elements; a kernel is made of elementwise functions and "
                 "ts.where");
        std::vector<FusedLoop::Source> sources;
        for (const CapturedOperand& input : step.inputs) sources.push_back(source_of(input));
        step_of[size_t(step.outputs[0].buffer)] = append_element_step(body.steps, step, formula, sources);
    }
    for (size_t i = 0; i < program.results.size(); ++i) {
        const CapturedOperand& result = program.results[i].value;
        FusedLoop::Step* step = nullptr;
        const int place = step_of[size_t(result.buffer)];
        if (place >= 0 && body.steps[size_t(place)].stored < 0) step = &body.steps[size_t(place)];
        if (!step) {  // an input, a constant, or a result that is given out twice
            body.steps.push_back({"cast",
                                  result.dtype,
                                  cast_loop(result.dtype, result.dtype),
                                  result.dtype,
                                  1,
                                  {source_of(result)}});
            step = &body.steps.back();
        }
        step->stored = int(i);
        body.results.push_back(result.dtype);
    }
    return body;
}

void ElementKernel::shape(Call& call) {
    const Body& all = body(types_of(call.in));
    Dims shape = call.input().shape();
    for (const T& input : call.in) shape = broadcast(shape, input->shape(), call.op.name);
    for (int i = 0; i < call.op.outputs; ++i) call.make(shape, all.results[size_t(i)], i);
}

void ElementKernel::compute(Call& call) {
    const Body& all = body(types_of(call.in));
    const FusedLoop loop(call.made[0].shape, all.steps);
    std::vector<T> leaves(call.in.begin(), call.in.end());
    leaves.insert(leaves.end(), all.constants.begin(), all.constants.end());
    loop.run(leaves, {call.out.data(), size_t(call.op.outputs)});
}

std::vector<DType> ElementKernel::results(const KernelSignature& signature) {
    return body(signature.types).results;
}

std::string ElementKernel::words(const KernelSignature& signature) {
    const Body& all = body(signature.types);
    std::string result;
    for (size_t i = 0; i < all.steps.size(); ++i) {
        const FusedLoop::Step& step = all.steps[i];
        result += step.stored >= 0 ? text("v", i, " -> out", step.stored, " = ") : text("v", i, " = ");
        result += text(step.formula, "<", name_of(step.operands), ">(");
        for (size_t k = 0; k < size_t(step.n); ++k) {
            const FusedLoop::Source& source = step.sources[k];
            const int constant = source.leaf - op().arity;
            result += k ? ", " : "";
            if (source.step >= 0)
                result += text("v", source.step);
            else if (constant < 0)
                result += text("x", source.leaf);
            else
                result += text(cast(all.constants[size_t(constant)], DType::f64)->data<double>()[0]);
        }
        result += ")\n";
    }
    return result;
}

std::string ElementKernel::cuda_source(const KernelSignature& signature) {
    const Body& all = body(signature.types);
    const FusedLoop loop({2}, all.steps);
    std::vector<T> leaves, stored;
    for (const DType type : signature.types) leaves.push_back(Tensor::full({2}, type, 0));
    leaves.insert(leaves.end(), all.constants.begin(), all.constants.end());
    for (const DType type : all.results) stored.push_back(Tensor::full({2}, type, 0));
    return cuda::fused_source(loop.device_program(leaves, stored));
}

}  // namespace accelera::tensora
