// Products of a captured program with an epilogue: elementwise steps on rows that are still in the cache.
#include <algorithm>

#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

/// The pass, over one program.
class Epilogues {
  public:
    explicit Epilogues(CapturedProgram& program) : program_(program), joined_(program.steps.size()) {}

    void run() {
        size_t part = 0;
        for (size_t i = 0; i < program_.steps.size(); ++i) {
            while (i >= program_.parts[part].end) ++part;
            if (!goes_by_rows(program_.steps[i])) continue;
            const size_t reader = first_reader(i, program_.parts[part].end);
            if (reader < program_.parts[part].end && may_follow(i, reader)) join(i, reader);
        }
        filter_steps(program_, [&](size_t i) { return !joined_[i]; });
    }

  private:
    using Operand = CapturedOperand;

    bool goes_by_rows(const CapturedStep& step) const {
        if (!step.op->by_rows || step.in_place ||
            !program_.buffers[size_t(step.outputs[0].buffer)].device.is_cpu())
            return false;
        std::vector<T> inputs;
        for (const Operand& input : step.inputs)
            inputs.push_back(T(new Tensor(Storage::movable(0), input.layout, input.dtype)));
        Call call{*step.op, inputs, step.params};
        step.op->rule(call);
        return step.op->by_rows(call);
    }

    static bool uses(const std::vector<Operand>& operands, int32_t buffer) {
        return std::any_of(operands.begin(), operands.end(),
                           [&](const Operand& operand) { return operand.buffer == buffer; });
    }

    size_t first_reader(size_t i, size_t end) const {
        size_t reader = i + 1;
        const int32_t made = program_.steps[i].outputs[0].buffer;
        while (reader < end && !uses(program_.steps[reader].inputs, made)) ++reader;
        return reader;
    }

    /// Whether step `at` is a loop over the product's elements that can run at the product's place.
    bool may_follow(size_t i, size_t at) const {
        const CapturedStep &product = program_.steps[i], &loop = program_.steps[at];
        if (loop.has_epilogue() || (!loop.fused && !formula_of(loop).loop)) return false;
        const Operand& made = product.outputs[0];
        const Dims& shape = loop.outputs[0].layout.shape;
        for (const Operand& input : loop.inputs) {
            const Layout& layout = input.layout;
            const bool whole =
                layout.offset == 0 && layout.shape == shape && layout.strides == strides_of(shape);
            if (input.buffer == made.buffer && !(whole && shape.product() == made.layout.shape.product()))
                return false;
        }
        for (const Operand& output : loop.outputs)
            if (uses(product.inputs, output.buffer)) return false;
        for (size_t k = i + 1; k < at; ++k)
            if (!joined_[k] && !may_pass(loop, program_.steps[k], made.buffer)) return false;
        return true;
    }

    /// Whether the loop can run before a step that is before it, and no result takes memory for longer.
    bool may_pass(const CapturedStep& loop, const CapturedStep& step, int32_t product) const {
        for (const Operand& output : loop.outputs) {
            const bool there_before =
                output.buffer == product || program_.buffers[size_t(output.buffer)].kept;
            if (!there_before || uses(step.inputs, output.buffer) || uses(step.outputs, output.buffer))
                return false;
        }
        return std::none_of(loop.inputs.begin(), loop.inputs.end(),
                            [&](const Operand& input) { return uses(step.outputs, input.buffer); });
    }

    void join(size_t i, size_t at) {
        CapturedStep &product = program_.steps[i], &loop = program_.steps[at];
        product.own_inputs = product.inputs.size();
        product.fused = loop.fused ? loop.fused : loop_of(loop);
        product.inputs.insert(product.inputs.end(), loop.inputs.begin(), loop.inputs.end());
        product.outputs.insert(product.outputs.end(), loop.outputs.begin(), loop.outputs.end());
        joined_[at] = true;
    }

    static std::shared_ptr<const FusedLoop> loop_of(const CapturedStep& step) {
        std::vector<FusedLoop::Source> sources;
        for (size_t k = 0; k < step.inputs.size(); ++k) sources.push_back({-1, int(k)});
        std::vector<FusedLoop::Step> steps;
        steps[size_t(append_element_step(steps, step, formula_of(step), sources))].stored = 0;
        return std::make_shared<FusedLoop>(step.outputs[0].layout.shape, std::move(steps));
    }

    CapturedProgram& program_;
    std::vector<char> joined_;  ///< steps that are part of an earlier one
};

}  // namespace

void join_epilogues(CapturedProgram& program) { Epilogues(program).run(); }

}  // namespace accelera::tensora
