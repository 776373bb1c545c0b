#include <nanobind/stl/optional.h>

#include "bindings/policy.h"
#include "trace/miss_curve.h"
#include "trace/pickle_scan.h"
#include "trace/stack_distance.h"

using namespace nanobind::literals;

namespace accelera {
namespace {

template <class T>
using Result = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void stack_distances(const Column<policy::Id>& buffers, const std::optional<Column<uint8_t>>& kinds,
                     const Column<int64_t>& sizes, const Result<int32_t>& distances,
                     const Result<int64_t>& distances_bytes, const Result<int64_t>& needed_bytes) {
    const trace::Events events{span_of(buffers), span_of(kinds), span_of(sizes)};
    const trace::StackDistances found{distances.data(), distances_bytes.data(), needed_bytes.data()};
    const nb::gil_scoped_release released;
    trace::measure_stack_distances(events, found);
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> to_numpy(std::vector<int64_t>&& values) {
    auto* kept = new std::vector<int64_t>(std::move(values));
    const nb::capsule owner(kept,
                            [](void* held) noexcept { delete static_cast<std::vector<int64_t>*>(held); });
    return {kept->data(), {kept->size()}, owner};
}

nb::tuple miss_curve(const Column<policy::Id>& buffers, const Column<int64_t>& needed_bytes,
                     const Column<int64_t>& sizes) {
    trace::MissCurve curve;
    {
        const nb::gil_scoped_release released;
        curve = trace::sum_up_needs(span_of(buffers), span_of(needed_bytes), span_of(sizes));
    }
    return nb::make_tuple(to_numpy(std::move(curve.capacity_bytes)), to_numpy(std::move(curve.hits)),
                          to_numpy(std::move(curve.hit_bytes)));
}

int64_t find_oversized_opcode(const nb::bytes& data) {
    const std::string_view bytes(data.c_str(), data.size());
    const nb::gil_scoped_release released;
    return trace::find_oversized_opcode(bytes);
}

}  // namespace
}  // namespace accelera

void init_trace(nanobind::module_& module) {
    using namespace accelera;
    module.def("stack_distances", &stack_distances, "buffers"_a, "kinds"_a.none(), "sizes"_a,
               "distances"_a.noconvert(), "distances_bytes"_a.noconvert(), "needed_bytes"_a.noconvert(),
               "Fill the last three, one entry per access: distinct other buffers since the last use, their\n"
               "bytes, and the least LRU capacity that has the buffer; -1 where there is none.");
    module.def("find_oversized_opcode", &find_oversized_opcode, "data"_a,
               "Return the position of the first opcode of a pickle that would take memory or time out of "
               "proportion\n"
               "to the file; -1 without any.");
    module.def("miss_curve", &miss_curve, "buffers"_a, "needed_bytes"_a, "sizes"_a,
               "Return capacities, ascending, and the hits and hit bytes that each gives, summed up.");
}
