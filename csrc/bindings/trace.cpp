#include <nanobind/stl/optional.h>

#include "bindings/policy.h"
#include "trace/stack_distance.h"

using namespace nanobind::literals;

namespace accelera {
namespace {

template <class T>
using Result = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void stack_distances(const Column<policy::Id>& buffers, const std::optional<Column<uint8_t>>& kinds,
                     const Column<int64_t>& sizes, const Result<int32_t>& distances,
                     const Result<int64_t>& distances_bytes,
                     const std::optional<Result<int64_t>>& needed_bytes) {
    const trace::Events events{span_of(buffers), span_of(kinds), span_of(sizes)};
    const trace::StackDistances found{distances.data(), distances_bytes.data(),
                                      needed_bytes ? needed_bytes->data() : nullptr};
    const nb::gil_scoped_release released;
    trace::measure_stack_distances(events, found);
}

}  // namespace
}  // namespace accelera

void init_trace(nanobind::module_& module) {
    using namespace accelera;
    module.def("stack_distances", &stack_distances, "buffers"_a, "kinds"_a.none(), "sizes"_a,
               "distances"_a.noconvert(), "distances_bytes"_a.noconvert(),
               "needed_bytes"_a.none().noconvert(),
               "Fill the last three, one entry per access: distinct other buffers since the last use, their\n"
               "bytes, and the least LRU capacity that has the buffer; -1 where there is none.");
}
