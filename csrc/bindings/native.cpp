// accelera._native: the table of contents. One line per file of this folder.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

#define ACCELERA_BINDINGS(X) \
    X(arena) X(cache) X(hierarchy) X(igemm) X(order) X(planner) X(policy) X(tile_io) X(trace)

#define DECLARE(name) void init_##name(nb::module_& module);
ACCELERA_BINDINGS(DECLARE)
#undef DECLARE

NB_MODULE(_native, module) {
    // What is alive when the interpreter ends, such as the policy of an offloaded model, is no leak.
    nb::set_leak_warnings(false);
    module.doc() = "Compiled kernels of Accelera.";
#define INIT(name) init_##name(module);
    ACCELERA_BINDINGS(INIT)
#undef INIT
}
