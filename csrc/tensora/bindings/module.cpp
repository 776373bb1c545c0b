// The extension module accelera._tensora.
#include <nanobind/intrusive/counter.inl>

#include "tensora/bindings/convert.h"
#include "tensora/core/threads.h"
#include "tensora/functions.h"
#include "tensora/kernels/elementwise.h"

namespace accelera::tensora {

namespace {

PyObject* python_type(Kind kind) {
    switch (kind) {
        case Kind::type:
            return PyExc_TypeError;
        case Kind::index:
            return PyExc_IndexError;
        case Kind::runtime:
            return PyExc_RuntimeError;
        case Kind::not_implemented:
            return PyExc_NotImplementedError;
        case Kind::memory:
            return PyExc_MemoryError;
        default:
            return PyExc_ValueError;
    }
}

void bind_dtypes(nb::module_& module) {
    auto type = nb::enum_<DType>(module, "dtype", "Type of a tensor's elements.");
    for (int i = 0; i < n_dtypes; ++i) type.value(std::string(name_of(DType(i))).c_str(), DType(i));
    module.def("itemsize", [](DType dtype) { return size_of(dtype); });
    module.def("kind", [](DType dtype) { return int(info(dtype).kind); });
    module.def("promote", promote);
    module.def("to_dtype", to_dtype);
    module.def("default_float", default_float);
    module.def("set_default_float", [](nb::handle dtype) { set_default_float(to_dtype(dtype)); });
}

void bind_memory(nb::module_& module) {
    nb::class_<MemoryStats>(module, "MemoryStats",
                            "Bytes of tensors on the CPU, and the blocks kept for the next ones.")
        .def_ro("live_bytes", &MemoryStats::live_bytes)
        .def_ro("peak_bytes", &MemoryStats::peak_bytes)
        .def_ro("cached_bytes", &MemoryStats::cached_bytes)
        .def_ro("limit_bytes", &MemoryStats::limit_bytes)
        .def_ro("allocations", &MemoryStats::allocations)
        .def_ro("reused", &MemoryStats::reused);
    module.def("memory_stats", memory_stats);
    module.def("reset_peak", reset_peak);
    module.def("set_memory_limit", set_memory_limit);
    module.def("empty_cache", empty_cache);
}

}  // namespace

}  // namespace accelera::tensora

using namespace accelera::tensora;

NB_MODULE(_tensora, module) {
    nb::intrusive_init(
        [](PyObject* object) noexcept {
            if (interpreter_held()) return Py_INCREF(object);
            const nb::gil_scoped_acquire held;
            Py_INCREF(object);
        },
        [](PyObject* object) noexcept {
            if (interpreter_held()) return Py_DECREF(object);
            const nb::gil_scoped_acquire held;
            Py_DECREF(object);
        });
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const Error& error) {
            PyErr_SetString(python_type(error.kind), error.what());
        }
    });
    set_interrupt_check([] {
        const nb::gil_scoped_acquire held;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
    set_interpreter_lock([]() -> void* { return PyEval_SaveThread(); },
                         [](void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
    bind_dtypes(module);
    bind_memory(module);
    bind_tensor(module);
    bind_ops(module);
    bind_networks(module);
    bind_autograd(module);
    module.def("instruction_set", [] { return std::string(instruction_set()); });
    module.def("thread_count", thread_count);
    module.def("set_thread_count", [](int n) {
        require(n >= 1, "set_num_threads: ", n, "; give at least 1");
        set_thread_count(n);
    });
}
