#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/policy.h"
#include "common/error.h"
#include "simulator/hierarchy/replay.h"

using namespace nanobind::literals;

namespace accelera {
namespace {

using simulator::Flow;
using simulator::HierarchyFigures;
using simulator::History;
using simulator::LinkFigures;
using simulator::LinkSpec;
using simulator::Machine;
using simulator::PreparedTrace;
using simulator::ReplayOptions;
using simulator::TierFigures;

/// A trace's columns, and what was found in them.
class GivenTrace {
  public:
    GivenTrace(Column<policy::Id> buffers, std::optional<Column<uint8_t>> kinds,
               std::optional<Column<int32_t>> steps, Column<int64_t> sizes)
        : buffers_(std::move(buffers)),
          kinds_(std::move(kinds)),
          steps_(std::move(steps)),
          sizes_(std::move(sizes)),
          prepared_({span_of(buffers_), span_of(kinds_), span_of(sizes_)}, span_of(steps_)) {}

    const PreparedTrace& prepared() const { return prepared_; }
    /// Found when first asked for, under the interpreter's lock.
    const simulator::Producers* producers() const {
        if (!producers_) producers_.emplace(prepared_);
        return &*producers_;
    }

  private:
    Column<policy::Id> buffers_;
    std::optional<Column<uint8_t>> kinds_;
    std::optional<Column<int32_t>> steps_;
    Column<int64_t> sizes_;
    PreparedTrace prepared_;
    mutable std::optional<simulator::Producers> producers_;
};

HierarchyFigures named(const std::string& name, const std::vector<policy::Knowledge>& known,
                       const PreparedTrace& trace, const Machine& machine, const ReplayOptions& options) {
    HierarchyFigures figures;
    bool found = false;
    {
        const nb::gil_scoped_release released;
        found = simulator::run_hierarchy(name, known, trace, machine, options, figures);
    }
    if (!found) throw ArgumentError("[policy] no policy is called " + name);
    return figures;
}

HierarchyFigures plugged_in(const nb::sequence& objects, const PreparedTrace& trace, const Machine& machine,
                            const ReplayOptions& options) {
    std::vector<std::unique_ptr<policy::AnyPolicy>> owned;
    std::vector<policy::AnyPolicy*> policies;
    for (nb::handle object : objects) {
        owned.push_back(python_policy(nb::borrow<nb::object>(object)));
        policies.push_back(owned.back().get());
    }
    return simulator::run_hierarchy(policies, trace, machine, options);
}

HierarchyFigures run(const nb::object& policy, const std::vector<GivenKnowledge>& known,
                     const GivenTrace& trace, const std::vector<int64_t>& capacities,
                     const std::vector<std::tuple<double, double, double, bool>>& links, double hit_s,
                     const std::optional<Column<double>>& seconds,
                     const std::optional<Column<policy::Time>>& next_read, size_t window, History* history) {
    Machine machine{capacities, {}, hit_s};
    for (const auto& [towards, away, latency, duplex] : links)
        machine.links.push_back({towards, away, latency, duplex});
    const ReplayOptions options{window, span_of(seconds), next_read ? trace.producers() : nullptr,
                                span_of(next_read), history};
    if (!nb::isinstance<nb::str>(policy))
        return plugged_in(nb::cast<nb::sequence>(policy), trace.prepared(), machine, options);
    std::vector<policy::Knowledge> views;
    for (const GivenKnowledge& each : known) views.push_back(each.view());
    return named(nb::cast<std::string>(policy), views, trace.prepared(), machine, options);
}

/// A column of a history, as an array that keeps the history alive.
template <class Part, class T>
auto column(Part History::* part, std::vector<T> Part::* values) {
    return [part, values](nb::handle_t<History> self) {
        std::vector<T>& kept = nb::cast<History&>(self).*part.*values;
        return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(kept.data(), {kept.size()}, self);
    };
}

void bind_history(nb::module_& module) {
    using Steps = History::Steps;
    using Moves = History::Moves;
    using Residency = History::Residency;
    nb::class_<History>(module, "ReplayHistory", "When everything of one replay happened, by columns.")
        .def(nb::init<>())
        .def("step", column(&History::steps, &Steps::step))
        .def("step_begin_s", column(&History::steps, &Steps::begin_s))
        .def("step_end_s", column(&History::steps, &Steps::end_s))
        .def("move_link", column(&History::moves, &Moves::link))
        .def("move_away", column(&History::moves, &Moves::away))
        .def("move_buffer", column(&History::moves, &Moves::buffer))
        .def("move_step", column(&History::moves, &Moves::step))
        .def("move_bytes", column(&History::moves, &Moves::bytes))
        .def("move_begin_s", column(&History::moves, &Moves::begin_s))
        .def("move_end_s", column(&History::moves, &Moves::end_s))
        .def("resident_since_s", column(&History::residency, &Residency::since_s))
        .def("resident_bytes", column(&History::residency, &Residency::bytes));
}

void bind_figures(nb::module_& module) {
    nb::class_<Flow>(module, "Flow", "What one direction of a link carried.")
        .def_ro("moves", &Flow::moves)
        .def_ro("bytes", &Flow::bytes)
        .def_ro("busy_s", &Flow::busy_s);
    nb::class_<LinkFigures>(module, "LinkFigures", "What a link carried.")
        .def_ro("towards", &LinkFigures::towards)
        .def_ro("away", &LinkFigures::away);
    nb::class_<TierFigures>(module, "TierFigures", "What happened in one tier.")
        .def_ro("hits", &TierFigures::hits)
        .def_ro("misses", &TierFigures::misses)
        .def_ro("evictions", &TierFigures::evictions)
        .def_ro("evicted_bytes", &TierFigures::evicted_bytes)
        .def_ro("fetched_bytes", &TierFigures::fetched_bytes)
        .def_ro("created_bytes", &TierFigures::created_bytes)
        .def_ro("saved_bytes", &TierFigures::saved_bytes)
        .def_ro("peak_bytes", &TierFigures::peak_bytes);
    nb::class_<HierarchyFigures>(module, "HierarchyFigures", "What a replay came to.")
        .def_ro("tiers", &HierarchyFigures::tiers)
        .def_ro("links", &HierarchyFigures::links)
        .def_ro("compute_s", &HierarchyFigures::compute_s)
        .def_ro("stall_s", &HierarchyFigures::stall_s)
        .def_ro("tail_s", &HierarchyFigures::tail_s)
        .def_ro("oversized_steps", &HierarchyFigures::oversized_steps)
        .def_ro("streamed_bytes", &HierarchyFigures::streamed_bytes)
        .def_ro("recomputed_steps", &HierarchyFigures::recomputed_steps)
        .def_ro("recomputed_s", &HierarchyFigures::recomputed_s);
}

}  // namespace
}  // namespace accelera

void init_hierarchy(nanobind::module_& module) {
    using namespace accelera;
    bind_figures(module);
    bind_history(module);
    nb::class_<GivenTrace>(module, "PreparedTrace", "A trace with what every replay of it needs, found once.")
        .def(nb::init<Column<policy::Id>, std::optional<Column<uint8_t>>, std::optional<Column<int32_t>>,
                      Column<int64_t>>(),
             "buffers"_a, "kinds"_a.none(), "steps"_a.none(), "sizes"_a)
        .def_prop_ro("recorded", [](const GivenTrace& self) { return self.prepared().recorded(); })
        .def_prop_ro("largest_step_bytes",
                     [](const GivenTrace& self) { return self.prepared().largest_step_bytes(); });
    module.def(
        "simulate_hierarchy", &run, "policy"_a, "known"_a, "trace"_a, "capacities"_a, "links"_a, "hit_s"_a,
        "seconds"_a.none(), "next_read"_a.none(), "window"_a, "history"_a.none(),
        "Replay a trace; `policy` is a compiled one's name, with what it knows per cache, or a\n"
        "sequence of objects, one per cache. Links are (seconds per byte towards, away, latency,\n"
        "duplex). With `next_read`, buffers may be made again instead of moved. With `history`, an empty "
        "one, it is told when everything happens. The lock is released unless the policies are Python's.");
}
