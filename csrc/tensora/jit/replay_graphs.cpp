#include "tensora/jit/replay_graphs.h"

#include <algorithm>

#include "tensora/base/interrupt.h"
#include "tensora/core/autograd.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;

namespace {
constexpr size_t least_steps = 4;  // for which a graph is worth the copies to its memory
}

ReplayGraphs::ReplayGraphs(const CapturedProgram& program)
    : program_(program), memory_(program.device.index) {
    size_t begin = 0;
    for (const CapturedProgram::Part& part : program.parts)
        parts_.push_back({std::exchange(begin, part.end), part.end});
}

/// Whether the step's kernel has the same arguments in each call: numbers on the CPU are among them.
bool ReplayGraphs::may_capture(const CapturedStep& step) const {
    const auto fixed = [&](const CapturedOperand& operand) {
        const CapturedBuffer& buffer = program_.buffers[size_t(operand.buffer)];
        return !buffer.device.is_cpu() || buffer.kind == Memory::constant;
    };
    return step.draw < 0 && !program_.buffers[size_t(step.outputs[0].buffer)].device.is_cpu() &&
           std::all_of(step.inputs.begin(), step.inputs.end(), fixed);
}

void ReplayGraphs::run(size_t part, bool fixed, const Actions& actions) {
    Part& one = parts_[part];
    if (!one.watched) return watch(one, actions);
    for (Segment& segment : one.segments) {
        if (fixed && segment.captured) {
            run_segment(segment, actions);
            continue;
        }
        for (size_t i = segment.begin; i < segment.end; ++i) {
            if (i % 16 == 0) check_interrupt();
            actions.run(i);
        }
    }
}

void ReplayGraphs::watch(Part& part, const Actions& actions) {
    std::vector<Segment> segments;
    for (size_t i = part.begin; i < part.end; ++i) {
        if (i % 16 == 0) check_interrupt();
        const size_t blocks = memory_.size();
        bool captured = may_capture(program_.steps[i]);
        {
            cuda::Watch watch(memory_, false);
            actions.run(i);
            captured = watch.only_work() && captured;
        }
        if (!captured) memory_.shrink(std::min(blocks, memory_.size()));
        if (segments.empty() || segments.back().captured != captured) segments.push_back({i, i, captured});
        ++segments.back().end;
    }
    for (Segment& segment : segments) {
        segment.captured = segment.captured && segment.end - segment.begin >= least_steps;
        if (segment.captured) n_steps_ += int64_t(segment.end - segment.begin);
    }
    if (!has_any()) memory_.shrink(0);
    part.segments = std::move(segments);
    part.watched = true;
}

void ReplayGraphs::run_segment(Segment& segment, const Actions& actions) {
    const auto run_all = [&] {
        for (size_t i = segment.begin; i < segment.end; ++i) actions.run(i);
    };
    if (!segment.graph) {
        try {
            segment.graph = std::make_unique<cuda::Graph>(memory_, run_all);
        } catch (const Error&) {  // nothing has run yet
            segment.captured = false;
            n_steps_ -= int64_t(segment.end - segment.begin);
        }
        actions.order_streams();  // the memory was used on the stream that graphs are captured on
    }
    segment.graph ? segment.graph->launch() : run_all();
}

}  // namespace accelera::tensora
