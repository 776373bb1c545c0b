#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tensora/device/graph.h"
#include "tensora/jit/program.h"

namespace accelera::tensora {

/// CUDA graphs of a program. A part is watched when it is replayed first; steps in a row that do nothing but
/// give work to the device are captured when it runs the next time, and launched as one from then on.
class ReplayGraphs {
  public:
    explicit ReplayGraphs(const CapturedProgram& program);

    /// Whether there are steps for graphs.
    bool has_any() const { return n_steps_ > 0; }
    /// Steps that graphs launch.
    int64_t n_steps() const { return n_steps_; }
    /// Memory that the steps' kernels need besides.
    int64_t nbytes() const { return memory_.nbytes(); }

    /// What a replay does with a step, and with memory that other streams may have used.
    struct Actions {
        std::function<void(size_t step)> run;
        std::function<void()> order_streams;
    };
    /// Runs the steps of a part; `fixed`: in memory whose addresses stay.
    void run(size_t part, bool fixed, const Actions& actions);

  private:
    /// Steps in a row.
    struct Segment {
        size_t begin, end;
        bool captured;  ///< or run one by one
        std::unique_ptr<cuda::Graph> graph{};
    };
    struct Part {
        size_t begin, end;
        bool watched = false;
        std::vector<Segment> segments{};
    };
    bool may_capture(const CapturedStep& step) const;
    void watch(Part& part, const Actions& actions);
    void run_segment(Segment& segment, const Actions& actions);

    const CapturedProgram& program_;
    cuda::StepMemory memory_;  // outlives the graphs
    std::vector<Part> parts_;
    int64_t n_steps_ = 0;
};

}  // namespace accelera::tensora
