// accelera._native: the table of contents. One line per file of this folder.
#include <nanobind/nanobind.h>

#include "common/error.h"

namespace nb = nanobind;

#define ACCELERA_BINDINGS(X) \
    X(arena) X(cache) X(hierarchy) X(igemm) X(order) X(planner) X(policy) X(spmm) X(tile_io) X(trace)

#define DECLARE(name) void init_##name(nb::module_& module);
ACCELERA_BINDINGS(DECLARE)
#undef DECLARE

namespace {

void set_error(const char* class_name, const std::exception& error) {
    const nb::object type = nb::module_::import_("accelera.errors").attr(class_name);
    PyErr_SetString(type.ptr(), error.what());
}

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const accelera::ArgumentError& error) {
        set_error("ArgumentError", error);
    } catch (const accelera::DeviceError& error) {
        set_error("DeviceError", error);
    }
}

}  // namespace

NB_MODULE(_native, module) {
    nb::register_exception_translator(translate);
    // What is alive when the interpreter ends, such as the policy of an offloaded model, is no leak.
    nb::set_leak_warnings(false);
    module.doc() = "Compiled kernels of Accelera.";
#define INIT(name) init_##name(module);
    ACCELERA_BINDINGS(INIT)
#undef INIT
}
