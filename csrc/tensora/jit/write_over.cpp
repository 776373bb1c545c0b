// Elementwise steps of a captured program that write over an operand: one buffer less at a time.
#include <algorithm>

#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

/// The pass, over one program.
class WriteOver {
  public:
    explicit WriteOver(CapturedProgram& program) : program_(program), lives_(lifetimes(program)) {}

    void run() {
        for (size_t i = 0; i < program_.steps.size(); ++i) {
            const CapturedStep& step = program_.steps[i];
            if (!step.fused && (step.in_place || step.op->family != Family::elementwise)) continue;
            for (size_t made = 0; made < step.outputs.size(); ++made)
                if (const int read = best_operand(i, made); read >= 0) unite(i, size_t(read), made);
        }
    }

  private:
    const CapturedBuffer& buffer(const CapturedOperand& operand) const {
        return program_.buffers[size_t(operand.buffer)];
    }
    Lifetime& life(const CapturedOperand& operand) { return lives_[size_t(operand.buffer)]; }

    /// The operand that this output can be written over, and that was computed last: a product is done so in
    /// the memory of what follows it.
    int best_operand(size_t i, size_t made) {
        const CapturedStep& step = program_.steps[i];
        int best = -1;
        for (size_t read = 0; read < step.inputs.size(); ++read)
            if (fits(i, read, made) &&
                (best < 0 || life(step.inputs[read]).first > life(step.inputs[size_t(best)]).first))
                best = int(read);
        return best;
    }

    bool fits(size_t i, size_t read, size_t made) {
        const CapturedStep& step = program_.steps[i];
        const CapturedOperand &from = step.inputs[read], &to = step.outputs[made];
        const CapturedBuffer &old = buffer(from), &next = buffer(to);
        constexpr auto computed = CapturedBuffer::Kind::computed;
        if (old.kind != computed || old.kept || next.kind != computed || old.nbytes != next.nbytes ||
            !(old.device == next.device) || life(from).last != int(i) || life(to).first != int(i))
            return false;
        // Memory of what is kept is there from the part on that computes it.
        if (next.kept && part_of(life(from).first) != part_of(int(i))) return false;
        const bool alike = from.dtype == to.dtype && from.layout.offset == 0 &&
                           from.layout.shape == to.layout.shape && from.layout.strides == to.layout.strides;
        return alike && uses(step, from.buffer) == 1 &&
               (!step.fused || step.fused->may_write_over(int(read), int(made)));
    }

    static int64_t uses(const CapturedStep& step, int32_t buffer) {
        const auto is_it = [&](const CapturedOperand& operand) { return operand.buffer == buffer; };
        return std::count_if(step.inputs.begin(), step.inputs.end(), is_it) +
               std::count_if(step.outputs.begin(), step.outputs.end(), is_it);
    }

    size_t part_of(int i) const {
        size_t part = 0;
        while (size_t(i) >= program_.parts[part].end) ++part;
        return part;
    }

    /// The operand's buffer is the output's from the beginning.
    void unite(size_t i, size_t read, size_t made) {
        const int32_t from = program_.steps[i].inputs[read].buffer;
        const int32_t to = program_.steps[i].outputs[made].buffer;
        lives_[size_t(to)].first = lives_[size_t(from)].first;
        lives_[size_t(from)] = {};
        for (int k = lives_[size_t(to)].first; k <= int(i); ++k)
            for (auto* operands : {&program_.steps[size_t(k)].inputs, &program_.steps[size_t(k)].outputs})
                for (CapturedOperand& operand : *operands)
                    if (operand.buffer == from) operand.buffer = to;
    }

    CapturedProgram& program_;
    std::vector<Lifetime> lives_;
};

}  // namespace

void write_over_operands(CapturedProgram& program) { WriteOver(program).run(); }

}  // namespace accelera::tensora
