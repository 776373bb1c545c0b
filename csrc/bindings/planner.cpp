#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "planner/activation_plan.h"
#include "planner/step_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace accelera::planner {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::vector<T> vector_of(const Column<T>& column) {
    return {column.data(), column.data() + column.size()};
}

Lists lists(const Column<int64_t>& starts, const Column<int32_t>& items) {
    return {vector_of(starts), vector_of(items)};
}

using Given = std::tuple<double, double, int64_t, int64_t>;

Step step_of(const Column<int64_t>& base, const Column<int64_t>& nbytes, const Column<int32_t>& producer,
             const Column<int64_t>& idle_from, const Column<int64_t>& needed, const Column<int64_t>& ends,
             const Column<uint8_t>& packable, const Column<double>& seconds, const Column<uint8_t>& pure,
             const std::tuple<Column<int64_t>, Column<int32_t>>& reads,
             const std::tuple<Column<int64_t>, Column<int32_t>>& makes) {
    return {vector_of(base),
            vector_of(nbytes),
            vector_of(producer),
            vector_of(idle_from),
            vector_of(needed),
            vector_of(ends),
            vector_of(packable),
            vector_of(seconds),
            vector_of(pure),
            lists(std::get<0>(reads), std::get<1>(reads)),
            lists(std::get<0>(makes), std::get<1>(makes))};
}

Prices prices_of(const Given& given) {
    return {std::get<0>(given), std::get<1>(given), std::get<2>(given), std::get<3>(given)};
}

std::vector<std::tuple<int64_t, double, nb::bytes>> plans(const Step& step, const Given& prices) {
    std::vector<ActivationPlan> found;
    {
        const nb::gil_scoped_release released;
        found = plan_activations(step, prices_of(prices));
    }
    std::vector<std::tuple<int64_t, double, nb::bytes>> result;
    for (const auto& plan : found)
        result.emplace_back(plan.peak_bytes, plan.seconds, nb::bytes(plan.fates.data(), plan.fates.size()));
    return result;
}

std::vector<std::tuple<int32_t, std::vector<int32_t>>> computed_again(const Step& step, const Given& prices,
                                                                      const nb::bytes& fates) {
    const auto* first = reinterpret_cast<const Fate*>(fates.c_str());
    std::vector<std::tuple<int32_t, std::vector<int32_t>>> result;
    for (const auto& each : recomputations(step, prices_of(prices), {first, first + fates.size()}))
        result.emplace_back(each.value, each.operations);
    return result;
}

using Rows = std::tuple<Column<int64_t>, Column<int32_t>>;

Lists lists(const Rows& rows) { return lists(std::get<0>(rows), std::get<1>(rows)); }

/// (added seconds, peak bytes, a fate per gap) of each choice.
std::vector<std::tuple<double, int64_t, nb::bytes>> choices(const StepGraph& graph, double spill_s_per_byte,
                                                            int64_t least_bytes) {
    std::vector<StepChoice> found;
    {
        const nb::gil_scoped_release released;
        found = plan_step(graph, {spill_s_per_byte, least_bytes});
    }
    std::vector<std::tuple<double, int64_t, nb::bytes>> result;
    for (const StepChoice& choice : found)
        result.emplace_back(choice.seconds, choice.peak_bytes,
                            nb::bytes(choice.fates.data(), choice.fates.size()));
    return result;
}

std::vector<GapFate> fates_of(const nb::bytes& fates) {
    const auto* first = reinterpret_cast<const GapFate*>(fates.c_str());
    return {first, first + fates.size()};
}

/// (top bytes, live bytes) of a choice.
std::tuple<int64_t, int64_t> memory(const StepGraph& graph, double spill_s_per_byte, int64_t least_bytes,
                                    const nb::bytes& fates) {
    const std::vector<GapFate> given = fates_of(fates);
    const nb::gil_scoped_release released;
    const StepMemory found = memory_of_step(graph, {spill_s_per_byte, least_bytes}, given);
    return {found.top_bytes, found.live_bytes};
}

/// Actions as (operation, after, kind, subject), and the places of blocks; top, live bytes, seconds.
nb::tuple schedule(const StepGraph& graph, double spill_s_per_byte, int64_t least_bytes,
                   const nb::bytes& fates, bool overlap) {
    const StepSchedule made = schedule_step(graph, {spill_s_per_byte, least_bytes}, fates_of(fates), overlap);
    nb::list actions;
    for (const PlannedAction& action : made.actions)
        actions.append(nb::make_tuple(action.operation, action.after, action.kind, action.subject));
    return nb::make_tuple(actions, made.places, made.top_bytes, made.live_bytes, made.seconds);
}

std::vector<std::tuple<int32_t, int32_t, int32_t>> gaps(const StepGraph& graph, int64_t least_bytes) {
    std::vector<std::tuple<int32_t, int32_t, int32_t>> result;
    for (const Gap& gap : gaps_of(graph, least_bytes)) result.emplace_back(gap.value, gap.after, gap.before);
    return result;
}

void bind_step_plans(nb::module_& module) {
    nb::class_<StepGraph>(module, "StepGraph",
                          "A logged training step whose memory is planned; see csrc/planner/step_plan.h.\n\n"
                          "`reads`, `writes` and `births` are (starts, items) per operation.")
        .def(
            "__init__",
            [](StepGraph* self, const Column<double>& seconds, const Column<int64_t>& workspace,
               const Column<uint8_t>& pure, const Rows& reads, const Rows& writes, const Rows& births,
               const Column<int64_t>& nbytes, const Column<int32_t>& born, const Column<int32_t>& freed,
               const Column<uint8_t>& fixed, const Column<int64_t>& packed_bytes,
               const Column<double>& pack_seconds) {
                new (self) StepGraph{vector_of(seconds), vector_of(workspace),    vector_of(pure),
                                     lists(reads),       lists(writes),           lists(births),
                                     vector_of(nbytes),  vector_of(born),         vector_of(freed),
                                     vector_of(fixed),   vector_of(packed_bytes), vector_of(pack_seconds)};
            },
            "seconds"_a, "workspace"_a, "pure"_a, "reads"_a, "writes"_a, "births"_a, "nbytes"_a, "born"_a,
            "freed"_a, "fixed"_a, "packed_bytes"_a, "pack_seconds"_a)
        .def("choices", &choices, "spill_s_per_byte"_a, "least_bytes"_a,
             "Choices of rising time: (added seconds, peak bytes, a fate per gap).")
        .def("memory", &memory, "spill_s_per_byte"_a, "least_bytes"_a, "fates"_a,
             "A choice's memory, its blocks laid out: (top bytes, live bytes).")
        .def("schedule", &schedule, "spill_s_per_byte"_a, "least_bytes"_a, "fates"_a, "overlap"_a = true,
             "What a choice does: (actions, places of blocks, top bytes, live bytes, added seconds).")
        .def(
            "added_seconds",
            [](const StepGraph& graph, double spill_s_per_byte, int64_t least_bytes, const nb::bytes& fates) {
                return added_seconds(graph, {spill_s_per_byte, least_bytes}, fates_of(fates));
            },
            "spill_s_per_byte"_a, "least_bytes"_a, "fates"_a, "What fates add to a step's time.")
        .def("gaps", &gaps, "least_bytes"_a, "(value, earlier use, later use) of all that may leave.");
}

}  // namespace
}  // namespace accelera::planner

void init_planner(nb::module_& module) {
    using namespace accelera::planner;
    nb::class_<Step>(
        module, "ActivationStep",
        "A training step whose saved tensors are planned; see csrc/planner/activation_plan.h.\n\n"
        "`reads` and `makes` are (starts, items) per operation; `prices` are offload and pack\n"
        "seconds per byte, the ratio of packing, and the least bytes.")
        .def(
            "__init__",
            [](Step* self, const Column<int64_t>& base, const Column<int64_t>& nbytes,
               const Column<int32_t>& producer, const Column<int64_t>& idle_from,
               const Column<int64_t>& needed, const Column<int64_t>& ends, const Column<uint8_t>& packable,
               const Column<double>& seconds, const Column<uint8_t>& pure,
               const std::tuple<Column<int64_t>, Column<int32_t>>& reads,
               const std::tuple<Column<int64_t>, Column<int32_t>>& makes) {
                new (self) Step(step_of(base, nbytes, producer, idle_from, needed, ends, packable, seconds,
                                        pure, reads, makes));
            },
            "base"_a, "nbytes"_a, "producer"_a, "idle_from"_a, "needed"_a, "ends"_a, "packable"_a,
            "seconds"_a, "pure"_a, "reads"_a, "makes"_a)
        .def("plans", &plans, "prices"_a,
             "Plans of falling peak and rising time: (peak bytes, added seconds, a fate per value).")
        .def("recomputations", &computed_again, "prices"_a, "fates"_a,
             "What is computed again, in order: (value for which, operations).");
    bind_step_plans(module);
}
