#include "simulator/cache.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings/policy.h"
#include "common/error.h"

using namespace nanobind::literals;

namespace accelera {
namespace {

using simulator::CacheFigures;
using simulator::Events;

CacheFigures named(const std::string& name, const GivenKnowledge& known, const Events& events) {
    const policy::Knowledge view = known.view();
    CacheFigures figures;
    bool found = false;
    {
        const nb::gil_scoped_release released;
        found = simulator::run_cache(name, view, events, figures);
    }
    if (!found) throw ArgumentError("[policy] no policy is called " + name);
    return figures;
}

CacheFigures run(const nb::object& policy, const GivenKnowledge& known, const Column<policy::Id>& buffers,
                 const std::optional<Column<uint8_t>>& kinds, const Column<int64_t>& sizes) {
    const Events events{span_of(buffers), span_of(kinds), span_of(sizes)};
    if (nb::isinstance<nb::str>(policy)) return named(nb::cast<std::string>(policy), known, events);
    const auto adapted = python_policy(policy);
    return simulator::run_cache(*adapted, known.capacity_bytes, events);
}

}  // namespace
}  // namespace accelera

void init_cache(nanobind::module_& module) {
    using namespace accelera;
    nb::class_<CacheFigures>(module, "CacheFigures", "What a plain cache did with a trace.")
        .def_ro("hits", &CacheFigures::hits)
        .def_ro("misses", &CacheFigures::misses)
        .def_ro("miss_bytes", &CacheFigures::miss_bytes)
        .def_ro("evictions", &CacheFigures::evictions)
        .def_ro("evicted_bytes", &CacheFigures::evicted_bytes)
        .def_ro("peak_bytes", &CacheFigures::peak_bytes);
    module.def("simulate_cache", &run, "policy"_a, "known"_a, "buffers"_a, "kinds"_a.none(), "sizes"_a,
               "Run events through one cache; `policy` is a compiled one's name, or an object written in\n"
               "Python. The lock is released unless the policy is Python's.");
}
