#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "planner/activation_plan.h"

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

using Found = std::vector<std::tuple<int64_t, double, nb::bytes>>;

Found plans(const Column<int64_t>& base, const Column<int64_t>& nbytes, const Column<int32_t>& producer,
            const Column<int64_t>& idle_from, const Column<int64_t>& needed, const Column<int64_t>& ends,
            const Column<uint8_t>& packable, const Column<double>& seconds, const Column<uint8_t>& pure,
            const std::tuple<Column<int64_t>, Column<int32_t>>& reads,
            const std::tuple<Column<int64_t>, Column<int32_t>>& makes,
            const std::tuple<double, double, int64_t, int64_t>& prices) {
    const Step step{vector_of(base),
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
    const Prices given{std::get<0>(prices), std::get<1>(prices), std::get<2>(prices), std::get<3>(prices)};
    std::vector<ActivationPlan> found;
    {
        const nb::gil_scoped_release released;
        found = plan_activations(step, given);
    }
    Found result;
    for (const auto& plan : found)
        result.emplace_back(plan.peak_bytes, plan.seconds, nb::bytes(plan.fates.data(), plan.fates.size()));
    return result;
}

}  // namespace
}  // namespace accelera::planner

void init_planner(nb::module_& module) {
    module.def(
        "plan_activations", &accelera::planner::plans, "base"_a, "nbytes"_a, "producer"_a, "idle_from"_a,
        "needed"_a, "ends"_a, "packable"_a, "seconds"_a, "pure"_a, "reads"_a, "makes"_a, "prices"_a,
        "Plans of falling peak and rising time: (peak bytes, added seconds, a fate per value).\n\n"
        "`reads` and `makes` are (starts, items) per operation; `prices` are offload and pack seconds\n"
        "per byte, the ratio of packing, and the least bytes. See csrc/planner/activation_plan.h.");
}
