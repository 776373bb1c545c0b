#include "simulator/hierarchy/replay.h"

#include <deque>

#include "policy/registry.h"
#include "simulator/hierarchy/stack.h"

namespace accelera::simulator {
namespace {

/// A step that is admitted and not yet retired: its events, from its first access up to that of the next.
struct InFlightStep {
    size_t begin;
    size_t end;
    double done_s;
};

/// The steps under way, the oldest first, in a ring.
class Window {
  public:
    explicit Window(size_t most) : ring_(most) {}

    bool empty() const { return count_ == 0; }
    bool full() const { return count_ == ring_.size(); }
    const InFlightStep& oldest() const { return ring_[oldest_]; }
    void push(const InFlightStep& step) {
        const size_t place = oldest_ + count_++;
        ring_[place < ring_.size() ? place : place - ring_.size()] = step;
    }
    InFlightStep pop() {
        const InFlightStep step = ring_[oldest_];
        if (++oldest_ == ring_.size()) oldest_ = 0;
        --count_;
        return step;
    }

  private:
    std::vector<InFlightStep> ring_;
    size_t oldest_ = 0;
    size_t count_ = 0;
};

/// One replay of a trace.
///
/// A step's operands are pinned together, then it computes once they have arrived. Pins end where the trace
/// records releases, else when the step is retired: the oldest one under way before a new one is admitted.
/// What the trace frees or saves after a step is freed or saved when that step is retired; a later access
/// that depends on it waits until then.
template <class P>
class Replay {
  public:
    Replay(const std::vector<P*>& policies, const PreparedTrace& trace, const Machine& machine,
           const ReplayOptions& options)
        : trace_(trace),
          machine_(machine),
          options_(options),
          stack_(policies, trace, machine, options),
          pending_(trace.departures() ? static_cast<size_t>(trace.buffers()) : 0),
          under_way_(std::min(options.window, static_cast<size_t>(trace.steps()) + 1)) {}

    HierarchyFigures run() {
        if (trace_.recorded()) {
            follow_record();
        } else {
            follow_window();
        }
        return figures();
    }

  private:
    /// How many events ahead the books are asked for.
    static constexpr size_t soon = 16;

    void follow_window() {
        for (size_t event = 0; event < trace_.size();) {
            if (under_way_.full()) retire();
            event = admit_step(event);
        }
        while (!under_way_.empty()) retire();
    }

    size_t admit_step(size_t begin) {
        size_t event = begin;
        int32_t step = -1;
        for (; event < trace_.size(); ++event) {
            if (event + soon < trace_.size())
                stack_.expect(trace_.buffer(event + soon), clock_ + static_cast<Time>(soon));
            if (!trace_.is_access(event)) {
                note_departure(event);
                continue;
            }
            if (step >= 0 && trace_.step(event) != step) break;
            if (step < 0 && options_.history) options_.history->admitted = trace_.step(event);
            step = trace_.step(event);
            if (!pending_.empty() && settle(event, begin)) begin = event;
            access(trace_.buffer(event), trace_.kind(event) == Kind::write);
        }
        under_way_.push({begin, event, compute(step)});
        return event;
    }

    void note_departure(size_t event) {
        Pending& pending = pending_[static_cast<size_t>(trace_.buffer(event))];
        if (trace_.kind(event) == Kind::free) pending.freed = event + 1;
        if (trace_.kind(event) == Kind::save) pending.saved = event + 1;
    }

    /// Before access `event`, retire the steps that still have to free its buffer, or to save what it is
    /// about to overwrite. True where that is the present step, which began at `begin`: its part so far is
    /// retired.
    bool settle(size_t event, size_t begin) {
        const Pending& pending = pending_[static_cast<size_t>(trace_.buffer(event))];
        const bool write = trace_.kind(event) == Kind::write;
        const size_t until = write ? std::max(pending.freed, pending.saved) : pending.freed;
        while (!under_way_.empty() && under_way_.oldest().begin < until) retire();
        if (until <= begin) return false;
        under_way_.push({begin, event, finish(0.0)});
        retire();
        return true;
    }

    /// Drop the pins of the oldest step under way, and do what the trace says happens after it.
    void retire() {
        const InFlightStep step = under_way_.pop();
        stack_.set_now(step.done_s);
        for (size_t event = step.begin; event < step.end; ++event) {
            const Id id = trace_.buffer(event);
            if (trace_.is_access(event)) {
                stack_.top().unpin(id);
            } else {
                depart(id, trace_.kind(event));
            }
        }
    }

    void follow_record() {
        std::vector<double> done_s(static_cast<size_t>(trace_.steps()), 0.0);
        for (size_t event = 0; event < trace_.size(); ++event) {
            const Id id = trace_.buffer(event);
            const auto step = static_cast<size_t>(trace_.step(event));
            if (trace_.is_access(event)) {
                if (options_.history) options_.history->admitted = trace_.step(event);
                access(id, trace_.kind(event) == Kind::write);
                if (trace_.completes_step(event)) done_s[step] = compute(trace_.step(event));
            } else if (trace_.kind(event) == Kind::release) {
                stack_.set_now(done_s[step]);
                stack_.top().unpin(id);
            } else {
                stack_.set_now(done_s[step]);
                depart(id, trace_.kind(event));
            }
        }
    }

    void access(Id id, bool write) {
        const Time time = clock_++;
        Tier<P>& top = stack_.top();
        if (top[id].here) {
            top.touch(id, time, write);
            top.pin(id);
            timeline_.await(top[id].ready_s);
            timeline_.add(machine_.hit_s);
        } else {
            bring(id, time, write);
        }
        if (write) stack_.invalidate(id);
    }

    void bring(Id id, Time time, bool write) {
        Tier<P>& top = stack_.top();
        const int64_t nbytes = top[id].nbytes;
        while (!top.fits(nbytes) && !under_way_.empty()) retire();
        const bool stays = top.fits(nbytes);
        if (!stays) {
            oversized_ = true;
            figures_.streamed_bytes += nbytes;
        }
        if (!write && !top[id].dropped) {
            timeline_.await(stack_.obtain(0, id, time));
            return;
        }
        if (!write) make_again(top[id].made);
        top.miss(id, true);
        top.pin(id);
        if (stays) {
            timeline_.await(stack_.create(id, time, write));
        } else if (write) {
            streamed_.push_back({id, time});
        }
    }

    /// Repeat the arithmetic of the step that wrote at time `made`, before that of the present step.
    void make_again(Time made) {
        const double seconds = stack_.recompute().seconds(made);
        stack_.recompute().for_each_input(made, [this](Id input) {
            const Copy& copy = stack_.top()[input];
            timeline_.await(copy.here ? copy.ready_s : stack_.carry(input));
        });
        timeline_.add(seconds);
        ++figures_.recomputed_steps;
        figures_.recomputed_s += seconds;
    }

    /// Compute the admitted step; returns when it is done.
    double compute(int32_t step) {
        const bool known = step >= 0 && static_cast<size_t>(step) < options_.seconds.size;
        figures_.oversized_steps += oversized_;
        oversized_ = false;
        return finish(known ? options_.seconds[static_cast<size_t>(step)] : 0.0);
    }

    /// Wait for what was admitted and compute for `seconds`; what is streamed away leaves then.
    double finish(double seconds) {
        const double begin_s = timeline_.begin_s();
        const double done_s = timeline_.compute(seconds);
        if (options_.history) options_.history->compute(begin_s, done_s);
        for (const Streamed& each : streamed_) stack_.stream_out(each.id, each.time, done_s);
        streamed_.clear();
        return done_s;
    }

    void depart(Id id, Kind kind) {
        const Copy& copy = stack_.top()[id];
        if (kind == Kind::free) {
            stack_.free(id);
        } else if (kind == Kind::save && copy.here && copy.dirty) {
            stack_.set_now(stack_.save(0, id));
        } else if (kind == Kind::evict && copy.here && copy.pins == 0) {
            stack_.evict_explicit(id);
        }
    }

    HierarchyFigures figures() {
        double idle_s = 0.0;
        for (const Tier<P>& tier : stack_.tiers()) figures_.tiers.push_back(tier.figures());
        for (const Link& link : stack_.links()) {
            figures_.links.push_back(link.figures());
            idle_s = std::max(idle_s, link.idle_from_s());
        }
        figures_.tiers.emplace_back();
        figures_.tiers.back().peak_bytes = stack_.home().peak_bytes();
        figures_.compute_s = timeline_.compute_s();
        figures_.stall_s = timeline_.stall_s();
        figures_.tail_s = std::max(0.0, idle_s - timeline_.done_s());
        return figures_;
    }

    struct Streamed {
        Id id;
        Time time;
    };

    /// The last free and the last save of a buffer that was passed, as the event after it; 0: none.
    struct Pending {
        size_t freed = 0;
        size_t saved = 0;
    };

    const PreparedTrace& trace_;
    const Machine& machine_;
    const ReplayOptions& options_;
    Stack<P> stack_;
    std::vector<Pending> pending_;
    Timeline timeline_;
    Window under_way_;
    std::vector<Streamed> streamed_;
    HierarchyFigures figures_;
    Time clock_ = 0;
    bool oversized_ = false;
};

template <class P>
HierarchyFigures run_with(const std::vector<policy::Knowledge>& known, const PreparedTrace& trace,
                          const Machine& machine, const ReplayOptions& options) {
    std::deque<P> policies;
    std::vector<P*> pointers;
    for (const policy::Knowledge& each : known) pointers.push_back(&policies.emplace_back(each));
    return Replay<P>(pointers, trace, machine, options).run();
}

}  // namespace

bool run_hierarchy(const std::string& name, const std::vector<policy::Knowledge>& known,
                   const PreparedTrace& trace, const Machine& machine, const ReplayOptions& options,
                   HierarchyFigures& figures) {
#define RUN(label, Type)                                                  \
    if (name == #label) {                                                 \
        figures = run_with<policy::Type>(known, trace, machine, options); \
        return true;                                                      \
    }
    ACCELERA_POLICIES(RUN)
#undef RUN
    return false;
}

HierarchyFigures run_hierarchy(const std::vector<policy::AnyPolicy*>& policies, const PreparedTrace& trace,
                               const Machine& machine, const ReplayOptions& options) {
    return Replay<policy::AnyPolicy>(policies, trace, machine, options).run();
}

}  // namespace accelera::simulator
