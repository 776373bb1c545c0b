// Fusion of a captured program's elementwise steps.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tensora/core/basic_functions.h"
#include "tensora/core/fused_loop.h"
#include "tensora/jit/program.h"

namespace accelera::tensora {

namespace {

using Memory = CapturedBuffer::Kind;

constexpr size_t most_operations = 40;  // of one loop
constexpr int none = -1;

bool is_whole(const CapturedOperand& operand, const CapturedOperand& made) {
    return operand.dtype == made.dtype && operand.layout.shape == made.layout.shape &&
           operand.layout.strides == made.layout.strides && operand.layout.offset == made.layout.offset;
}

/// The pass, over one program.
class Fusion {
  public:
    explicit Fusion(CapturedProgram& program)
        : program_(program),
          formulas_(program.steps.size()),
          group_of_(program.steps.size(), none),
          producer_(program.buffers.size(), none),
          writes_(program.buffers.size()),
          last_use_(program.buffers.size(), none),
          readers_(program.buffers.size()) {}

    void run() {
        survey();
        form_groups();
        choose_recomputed();
        rewrite();
    }

  private:
    struct Group {
        Dims shape;
        std::vector<int> members;
        bool open = true;
    };
    using Operand = CapturedOperand;

    const CapturedStep& step(int i) const { return program_.steps[size_t(i)]; }
    int n_steps() const { return int(program_.steps.size()); }
    const Operand& made(int i) const { return step(i).outputs[0]; }
    Device device_of(int i) const { return program_.buffers[size_t(made(i).buffer)].device; }
    /// Whether two steps can be of one loop.
    bool alike(int i, int j) const {
        return made(i).layout.shape == made(j).layout.shape && device_of(i) == device_of(j);
    }

    void survey() {
        for (int i = 0; i < n_steps(); ++i) {
            formulas_[size_t(i)] = formula_of(step(i));
            for (const Operand& input : step(i).inputs) {
                last_use_[size_t(input.buffer)] = i;
                auto& readers = readers_[size_t(input.buffer)];
                if (readers.empty() || readers.back() != i) readers.push_back(i);
            }
            for (const Operand& output : step(i).outputs) {
                last_use_[size_t(output.buffer)] = i;
                producer_[size_t(output.buffer)] = i;
                writes_[size_t(output.buffer)].push_back(i);
            }
        }
    }

    /// The group that makes this operand, if all of it is read as it was made, by a step of the same shape.
    int source_group(const Operand& operand, int reader) const {
        const int from = producer_[size_t(operand.buffer)];
        const auto& writes = writes_[size_t(operand.buffer)];
        if (from == none || writes.size() != 1 || group_of_[size_t(from)] == none) return none;
        return is_whole(operand, made(from)) && alike(from, reader) ? group_of_[size_t(from)] : none;
    }

    // --- groups

    void form_groups() {
        std::fill(producer_.begin(), producer_.end(), none);  // known from here on as the walk goes on
        size_t part = 0;
        for (int i = 0; i < n_steps(); ++i) {
            for (; size_t(i) >= program_.parts[part].end; ++part)
                for (Group& group : groups_) group.open = false;
            formulas_[size_t(i)].loop ? join(i) : close_for(i, none);
            for (const Operand& output : step(i).outputs) producer_[size_t(output.buffer)] = i;
        }
    }

    void join(int i) {
        const Dims& shape = made(i).layout.shape;
        std::set<int> joined, needed_before;
        for (const Operand& input : step(i).inputs) {
            const int from = producer_[size_t(input.buffer)];
            if (from != none && source_group(input, i) == none) needed_before.insert(group_of_[size_t(from)]);
        }
        size_t size = 1;
        for (const Operand& input : step(i).inputs) {
            const int group = source_group(input, i);
            if (group == none || !groups_[size_t(group)].open || joined.count(group)) continue;
            if (needed_before.count(group)) continue;
            if (size + groups_[size_t(group)].members.size() > most_operations) continue;
            size += groups_[size_t(group)].members.size();
            joined.insert(group);
        }
        const int own = int(groups_.size());
        Group merged{shape, {}};
        for (const int group : joined) {
            Group& one = groups_[size_t(group)];
            merged.members.insert(merged.members.end(), one.members.begin(), one.members.end());
            for (const int member : one.members) group_of_[size_t(member)] = own;
            one.members.clear();
            one.open = false;
        }
        merged.members.push_back(i);
        std::sort(merged.members.begin(), merged.members.end());
        groups_.push_back(std::move(merged));
        group_of_[size_t(i)] = own;
        close_for(i, own);
    }

    /// Groups whose results step `i` reads, or whose operands it writes, run before it.
    void close_for(int i, int own) {
        for (const Operand& input : step(i).inputs) {
            const int from = producer_[size_t(input.buffer)];
            if (from != none && group_of_[size_t(from)] != none && group_of_[size_t(from)] != own)
                groups_[size_t(group_of_[size_t(from)])].open = false;
        }
        if (!step(i).in_place) return;
        for (size_t k = 0; k < groups_.size(); ++k)
            if (groups_[k].open && touches(groups_[k], made(i).buffer)) groups_[k].open = false;
    }

    bool touches(const Group& group, int32_t buffer) const {
        return std::any_of(group.members.begin(), group.members.end(), [&](int member) {
            const auto& inputs = step(member).inputs;
            return made(member).buffer == buffer ||
                   std::any_of(inputs.begin(), inputs.end(),
                               [&](const Operand& input) { return input.buffer == buffer; });
        });
    }

    // --- what is computed again instead of stored

    void choose_recomputed() {
        recomputed_.assign(program_.buffers.size(), false);
        for (int i = 0; i < n_steps(); ++i) {
            if (group_of_[size_t(i)] == none) continue;
            const auto buffer = size_t(made(i).buffer);
            recomputed_[buffer] = !program_.buffers[buffer].kept && may_recompute(i);
        }
    }

    /// Whether all later readers are loops of the same shape, in which the step can run again on tensors that
    /// are there anyway.
    bool may_recompute(int i) {
        if (writes_[size_t(made(i).buffer)].size() != 1) return false;
        bool leaves_its_group = false;
        for (const int reader : readers_[size_t(made(i).buffer)]) {
            const int group = group_of_[size_t(reader)];
            if (group == group_of_[size_t(i)]) continue;
            leaves_its_group = true;
            if (group == none || !reads_whole(reader, i)) return false;
            const Group& its = groups_[size_t(group)];
            size_t added = 0;
            if (!is_at_hand(i, its.members.back(), added)) return false;
            if (its.members.size() + added + extra_[group] > most_operations) return false;
        }
        if (!leaves_its_group) return false;
        for (const int reader : readers_[size_t(made(i).buffer)]) {
            const int group = group_of_[size_t(reader)];
            size_t added = 0;
            if (group == group_of_[size_t(i)]) continue;
            is_at_hand(i, groups_[size_t(group)].members.back(), added);
            extra_[group] += added;
        }
        return true;
    }

    bool reads_whole(int reader, int i) const {
        if (!alike(reader, i)) return false;
        const auto& inputs = step(reader).inputs;
        return std::all_of(inputs.begin(), inputs.end(), [&](const Operand& input) {
            return input.buffer != made(i).buffer || is_whole(input, made(i));
        });
    }

    /// Whether what step `i` is computed from still holds the same at step `at`, without being kept for it.
    bool is_at_hand(int i, int at, size_t& operations) const {
        if (++operations > most_operations || step(i).draw >= 0) return false;
        for (const Operand& input : step(i).inputs) {
            const auto buffer = size_t(input.buffer);
            const int from = producer_[buffer];
            const bool inside =
                from != none && (group_of_[size_t(from)] == group_of_[size_t(i)] || recomputed_[buffer]);
            if (inside && group_of_[size_t(from)] != none && writes_[buffer].size() == 1 &&
                is_whole(input, made(from)) && alike(from, i)) {
                if (!is_at_hand(from, at, operations)) return false;
                continue;
            }
            const bool lasting =
                program_.buffers[buffer].kind != Memory::computed || program_.buffers[buffer].kept;
            if (!lasting && last_use_[buffer] < at) return false;
            for (const int write : writes_[buffer])
                if (write > i && write <= at) return false;
            if (lasting && program_.buffers[buffer].kind != Memory::constant && part_of(i) != part_of(at))
                return false;
        }
        return true;
    }

    size_t part_of(int i) const {
        size_t part = 0;
        while (size_t(i) >= program_.parts[part].end) ++part;
        return part;
    }

    // --- the new steps

    /// Makes the loop of one group.
    struct Build {
        std::vector<FusedLoop::Step> steps;
        CapturedStep step;
        std::map<int, int> places;  ///< of steps in the loop
    };

    int visit(Build& build, int group, int i) {
        const auto known = build.places.find(i);
        if (known != build.places.end()) return known->second;
        std::vector<FusedLoop::Source> sources;
        for (const Operand& input : step(i).inputs) sources.push_back(source_of(build, group, i, input));
        const int place = append_element_step(build.steps, step(i), formulas_[size_t(i)], sources);
        if (group_of_[size_t(i)] == group && is_stored(i, group)) {
            build.steps[size_t(place)].stored = int(build.step.outputs.size());
            build.step.outputs.push_back(made(i));
        }
        return build.places[i] = place;
    }

    FusedLoop::Source source_of(Build& build, int group, int i, const Operand& input) {
        const auto buffer = size_t(input.buffer);
        const int from = producer_[buffer];
        if (from != none && group_of_[size_t(from)] != none && writes_[buffer].size() == 1 &&
            is_whole(input, made(from)) && alike(from, i) &&
            (group_of_[size_t(from)] == group || group_of_[size_t(from)] == group_of_[size_t(i)] ||
             recomputed_[buffer]))
            return {visit(build, group, from), none};
        auto& leaves = build.step.inputs;
        for (size_t k = 0; k < leaves.size(); ++k)
            if (leaves[k].buffer == input.buffer && is_whole(leaves[k], input)) return {none, int(k)};
        leaves.push_back(input);
        return {none, int(leaves.size()) - 1};
    }

    bool is_stored(int i, int group) const {
        const auto buffer = size_t(made(i).buffer);
        if (program_.buffers[buffer].kept) return true;
        if (recomputed_[buffer]) return false;
        const auto& readers = readers_[buffer];
        return std::any_of(readers.begin(), readers.end(), [&](int reader) {
            return group_of_[size_t(reader)] != group || !reads_whole(reader, i);
        });
    }

    void rewrite() {
        std::vector<CapturedStep> steps;
        std::vector<size_t> before{0};
        for (int i = 0; i < n_steps(); ++i) {
            const int group = group_of_[size_t(i)];
            if (group == none) {
                steps.push_back(step(i));
            } else if (groups_[size_t(group)].members.back() == i) {
                CapturedStep made_step = fused(group);
                if (!made_step.outputs.empty()) steps.push_back(std::move(made_step));
            }
            before.push_back(steps.size());
        }
        for (auto& part : program_.parts) part.end = before[part.end];
        program_.steps = std::move(steps);
    }

    CapturedStep fused(int group) {
        const Group& its = groups_[size_t(group)];
        Build build{{}, {step(its.members.back()).op, {}, {}, {}}, {}};
        for (const int member : its.members)
            if (is_stored(member, group)) visit(build, group, member);
        if (its.members.size() == 1 && build.steps.size() == 1) return step(its.members[0]);
        build.step.fused = std::make_shared<FusedLoop>(its.shape, std::move(build.steps));
        return std::move(build.step);
    }

    CapturedProgram& program_;
    std::vector<ElementFormula> formulas_;
    std::vector<Group> groups_;
    std::vector<int> group_of_;  ///< by step
    std::vector<int> producer_;  ///< by buffer: the step that wrote it last
    std::vector<std::vector<int>> writes_;
    std::vector<int> last_use_;
    std::vector<std::vector<int>> readers_;
    std::vector<char> recomputed_;
    std::map<int, size_t> extra_;  ///< operations that recomputing adds to a group
};

}  // namespace

ElementFormula formula_of(const CapturedStep& step, bool copies) {
    if (step.op->family != Family::elementwise || step.in_place || step.outputs.size() != 1) return {};
    std::vector<T> inputs;
    for (const CapturedOperand& input : step.inputs)
        inputs.push_back(T(new Tensor(Storage::movable(0), input.layout, input.dtype)));
    if (step.op->loops) {
        const DType operands = loop_type(Call{*step.op, inputs, step.params});
        return {operands, step.op->loops->of[int(operands)].loop};
    }
    const DType out = step.outputs[0].dtype;
    if (std::strcmp(step.op->name, "where") == 0) return {out, where_loop(out)};
    const DType from = step.inputs[0].dtype;
    const bool converts = std::strcmp(step.op->name, "cast") == 0 && (copies || from != out);
    return {from, converts ? cast_loop(from, out) : nullptr};
}

int append_element_step(std::vector<FusedLoop::Step>& steps, const CapturedStep& step,
                        const ElementFormula& formula, std::span<const FusedLoop::Source> sources) {
    FusedLoop::Step one{step.op->name, formula.operands, formula.loop, step.outputs[0].dtype,
                        int(sources.size())};
    const bool selects = !step.op->loops && sources.size() == 3;
    for (size_t k = 0; k < sources.size(); ++k) {
        one.sources[k] = sources[k];
        const DType from = step.inputs[k].dtype;
        if (from == formula.operands || (selects && k == 0)) continue;
        steps.push_back({"cast", from, cast_loop(from, formula.operands), formula.operands, 1, {sources[k]}});
        one.sources[k] = {int(steps.size()) - 1, -1};
    }
    steps.push_back(one);
    return int(steps.size()) - 1;
}

void fuse_steps(CapturedProgram& program) { Fusion(program).run(); }

std::string fused_words(const CapturedStep& step) {
    std::string result = "fused";
    const char* before = "[";
    for (const FusedLoop::Step& one : step.fused->steps()) {
        result += text(before, one.formula);
        before = " ";
    }
    return result + "]";
}

}  // namespace accelera::tensora
