// Linear algebra and random numbers as functions of Python.
#include "tensora/ops/linalg.h"

#include <nanobind/stl/array.h>

#include "tensora/bindings/convert.h"
#include "tensora/ops/random.h"

namespace accelera::tensora {

namespace {

std::pair<T, T> first_two(const std::array<T, 3>& all) { return {all[0], all[1]}; }

void bind_random(nb::module_& module) {
    module.def("philox", philox, "Philox4x32-10 of a counter of four words and a key of two.");
    module.def("random_uniform",
               [](uint64_t seed, uint64_t draw, const Dims& shape, DType dtype, double low, double high) {
                   return random_uniform({seed, draw}, shape, dtype, low, high);
               });
    module.def("random_normal",
               [](uint64_t seed, uint64_t draw, const Dims& shape, DType dtype, double mean,
                  double deviation) { return random_normal({seed, draw}, shape, dtype, mean, deviation); });
    module.def("random_integers",
               [](uint64_t seed, uint64_t draw, const Dims& shape, DType dtype, int64_t low,
                  uint64_t extent) { return random_integers({seed, draw}, shape, dtype, low, extent); });
    module.def("random_permutation",
               [](uint64_t seed, uint64_t draw, int64_t n) { return random_permutation({seed, draw}, n); });
}

}  // namespace

void bind_linalg(nb::module_& module) {
    module.def("cholesky", cholesky);
    module.def("solve", solve);
    module.def("solve_triangular", solve_triangular, nb::arg("a"), nb::arg("b"), nb::arg("upper"));
    module.def("inv", inv);
    module.def("det", det);
    module.def("slogdet", [](const T& x) { return first_two(slogdet(x)); });
    module.def(
        "qr", [](const T& x, bool complete) { return first_two(qr(x, complete)); }, nb::arg("x"),
        nb::arg("complete"));
    module.def("svd", svd, nb::arg("x"), nb::arg("full"));
    module.def("svdvals", svdvals);
    module.def("eigh", [](const T& x) { return first_two(eigh(x)); });
    module.def("eigvalsh", eigvalsh);
    bind_random(module);
}

}  // namespace accelera::tensora
