// Sorting and searching as functions of Python.
#include "tensora/ops/search.h"

#include "tensora/bindings/convert.h"

namespace accelera::tensora {

void bind_search(nb::module_& module) {
    module.def("argsort", argsort, nb::arg("x"), nb::arg("axis"), nb::arg("descending"),
               nb::arg("kept") = nb::none());
    module.def("argmax", argmax);
    module.def("argmin", argmin);
    module.def("searchsorted", searchsorted);
    module.def("unique", [](const T& x) {
        const Unique found = unique(x);
        return nb::make_tuple(found.values, found.indices, found.inverse, found.counts);
    });
}

}  // namespace accelera::tensora
