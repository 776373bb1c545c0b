// The extension module accelera._tensora.
#include <cxxabi.h>

#include <csignal>
#include <nanobind/intrusive/counter.inl>

#include "tensora/base/interrupt.h"
#include "tensora/base/threads.h"
#include "tensora/bindings/checked_cast.h"
#include "tensora/bindings/convert.h"
#include "tensora/core/op.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/blas.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

const char* class_name(Kind kind) {
    switch (kind) {
        case Kind::value:
        case Kind::type:
            return "ArgumentError";
        case Kind::shape:
            return "ShapeError";
        case Kind::dtype:
            return "DTypeError";
        case Kind::index:
            return "IndexingError";
        case Kind::runtime:
            return "StateError";
        case Kind::not_implemented:
            return "UnsupportedError";
        case Kind::memory:
            return "OutOfMemoryError";
        case Kind::device_memory:
            return "DeviceMemoryError";
        case Kind::device:
            return "DeviceError";
        case Kind::store:
            return "StoreError";
    }
    return "AcceleraError";
}

void set_error(const Error& error) {
    const nb::object type = nb::module_::import_("accelera.errors").attr(class_name(error.kind));
    PyErr_SetString(type.ptr(), error.what());
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

nb::dict by_role(const std::array<int64_t, n_roles>& nbytes) {
    nb::dict result;
    for (int i = 0; i < n_roles; ++i) result[name_of(Role(i))] = nbytes[i];
    return result;
}

void bind_memory(nb::module_& module) {
    nb::class_<MemoryStats>(module, "MemoryStats",
                            "Bytes of tensors on the CPU, and the blocks kept for the next ones.")
        .def_ro("live_bytes", &MemoryStats::live_bytes)
        .def_ro("peak_bytes", &MemoryStats::peak_bytes)
        .def_ro("cached_bytes", &MemoryStats::cached_bytes)
        .def_ro("limit_bytes", &MemoryStats::limit_bytes)
        .def_ro("allocations", &MemoryStats::allocations)
        .def_ro("reused", &MemoryStats::reused)
        .def_prop_ro("live_by_role", [](const MemoryStats& stats) { return by_role(stats.live_by_role); })
        .def_prop_ro("peak_by_role", [](const MemoryStats& stats) { return by_role(stats.peak_by_role); })
        .def("__repr__", [](const MemoryStats& stats) {
            return "MemoryStats(live_bytes=" + std::to_string(stats.live_bytes) +
                   ", peak_bytes=" + std::to_string(stats.peak_bytes) +
                   ", cached_bytes=" + std::to_string(stats.cached_bytes) +
                   ", limit_bytes=" + std::to_string(stats.limit_bytes) + ")";
        });
    const auto on = nb::arg("device") = "cpu";
    module.def(
        "memory_stats", [](const std::string& device) { return memory_stats(device_named(device)); }, on);
    module.def("reset_peak", [](const std::string& device) { reset_peak(device_named(device)); }, on);
    module.def(
        "set_memory_limit",
        [](int64_t nbytes, const std::string& device) { set_memory_limit(nbytes, device_named(device)); },
        nb::arg("nbytes"), on);
    module.def("empty_cache", [](const std::string& device) { empty_cache(device_named(device)); }, on);
    module.def("compute", [](const T& x) { x->storage(); });
    module.def("fusion_least", fusion_least);
    module.def("set_fusion_least", set_fusion_least);
}

int cuda_index(const std::string& device) {
    const Device named = device_named(device);
    require(!named.is_cpu(), "[tensora.cuda] the device 'cpu'; give 'cuda' or 'cuda:0'");
    return named.index;
}

void bind_cuda(nb::module_& module) {
    module.def("cuda_set_packaged_libraries", cuda::set_packaged_libraries);
    module.def("cuda_device_count", cuda::device_count);
    module.def("cuda_absence", cuda::absence);
    module.def("cuda_properties", [](const std::string& device) {
        const cuda::Properties& found = cuda::properties(cuda_index(device));
        return nb::make_tuple(found.name, found.memory_bytes, found.major, found.minor, found.processors);
    });
    module.def("cuda_free_bytes",
               [](const std::string& device) { return cuda::free_bytes(cuda_index(device)).on_device; });
    module.def("cuda_synchronize", [](const std::string& device) { cuda::synchronize(cuda_index(device)); });
    // Streams are the driver's handles, as numbers.
    module.def("cuda_make_stream", [](const std::string& device) {
        return reinterpret_cast<uintptr_t>(cuda::make_stream(cuda_index(device)));
    });
    module.def("cuda_current_stream", [](const std::string& device) {
        return reinterpret_cast<uintptr_t>(cuda::current_stream(cuda_index(device)));
    });
    module.def("cuda_set_stream", [](const std::string& device, uintptr_t stream) {
        cuda::set_stream(cuda_index(device), reinterpret_cast<cuda::Stream>(stream));
    });
    module.def("cuda_order_streams", [](const std::string& device, uintptr_t earlier, uintptr_t later) {
        cuda::order_streams(cuda_index(device), reinterpret_cast<cuda::Stream>(earlier),
                            reinterpret_cast<cuda::Stream>(later));
    });
    module.def("cuda_wait_for", [](const std::string& device, uintptr_t stream) {
        cuda::wait_for(cuda_index(device), reinterpret_cast<cuda::Stream>(stream));
    });
    // For libraries that take their device from the current context. Returns the one before.
    module.def("cuda_enter_context", [](const std::string& device) {
        return reinterpret_cast<uintptr_t>(cuda::enter_context(cuda_index(device)));
    });
    module.def("cuda_leave_context",
               [](uintptr_t before) { cuda::leave_context(reinterpret_cast<void*>(before)); });
    module.def("cuda_driver_version", cuda::driver_version);
    module.def("cuda_set_kernel_folder", cuda::set_kernel_folder);
    module.def("cuda_kernel_counts", [] {
        const cuda::KernelCounts counts = cuda::kernel_counts();
        return nb::make_tuple(counts.compiled, counts.loaded);
    });
    module.def("cuda_sources", [] {
        nb::dict sources;
        for (const std::string& name : cuda::carried_names())
            sources[name.c_str()] = cuda::carried_source(name);
        return sources;
    });
    module.def("cuda_compile", [](const std::string& text, const std::string& architecture) {
        const std::string code = cuda::compile(text, architecture);
        return nb::bytes(code.data(), code.size());
    });
    module.def("device_named", [](const std::string& name) { return name_of(device_named(name)); });
    module.def("current_device", [] { return name_of(DeviceScope::current()); });
}

nb::tuple columns_of(const Record& record) {
    nb::list roles;
    for (const Role role : record.buffer_role) roles.append(name_of(role));
    return nb::make_tuple(record.event_buffer, record.event_kind, record.event_step, record.buffer_nbytes,
                          roles, record.buffer_name, record.step_op, record.step_flops, record.step_seconds);
}

void bind_recorder(nb::module_& module) {
    module.def("begin_record", begin_record);
    module.def("end_record", [] { return columns_of(end_record()); });
    module.def("is_recording", is_recording);
    module.def("name_in_record",
               [](const T& x, const std::string& name) { name_in_record(*x->storage(), name); });
    module.def("set_data", [](const T& x, const T& other) {
        if (x->base() || node_of(*x))
            fail(Kind::runtime,
                 "[set_data] the tensor was computed from others; only a leaf can have other memory");
        x->become(*other);
    });
    module.def("set_role", [](const T& x, const std::string& name) {
        for (int i = 0; i < n_roles; ++i)
            if (name == name_of(Role(i))) return x->storage()->set_role(Role(i));
        fail(Kind::value, "[set_role] no role is called '", name, "'");
    });
}

}  // namespace

void set_python_error() noexcept {
    try {
        throw;
    } catch (const Error& error) {
        set_error(error);
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
}

// --- autograd -------------------------------------------------------------------------------------------

namespace {

/// A Python object that C++ may let go of on any thread.
std::shared_ptr<nb::object> shared(nb::object object) {
    return std::shared_ptr<nb::object>(new nb::object(std::move(object)), [](nb::object* held) {
        const nb::gil_scoped_acquire gil;
        delete held;
    });
}

/// Operation of the user's own: gradients come from a Python function.
class CustomNode final : public Node {
  public:
    CustomNode(std::string name, std::shared_ptr<nb::object> function, std::span<const T> inputs,
               bool continues_sums)
        : Node(nullptr, inputs),
          name_(std::move(name)),
          function_(std::move(function)),
          continues_sums_(continues_sums) {}

    std::string name() const override { return name_; }
    size_t object_bytes() const override { return sizeof(CustomNode); }

    SmallVector<T> backward(const SmallVector<T>& grads) override {
        const nb::gil_scoped_acquire gil;
        if (!function_)
            fail(Kind::runtime, "[backward of '", name_,
                 "'] it runs a second time: give retain_graph=True to the first backward");
        nb::list given;
        for (size_t i = 0; i < grads.size(); ++i)
            given.append(grads[i] ? grads[i] : zeros(outputs[i].shape, outputs[i].dtype));
        if (continues_sums_) {
            given = nb::list();
            given.append(list_of_optional(grads));
            given.append(list_of_optional(sums_));
            sums_.clear();
        }
        nb::object result = (*function_)(*nb::tuple(given));
        if (!nb::isinstance<nb::tuple>(result)) result = nb::make_tuple(result);
        const nb::tuple all = nb::borrow<nb::tuple>(result);
        if (all.size() != edges.size())
            fail(Kind::runtime, "[backward of '", name_, "'] returned ", all.size(), " gradients for ",
                 edges.size(), " inputs");
        SmallVector<T> results(edges.size());
        for (size_t i = 0; i < edges.size(); ++i) {
            const T grad = checked_optional_tensor(
                all[i], "[backward of '" + name_ + "'] the gradient of input " + std::to_string(i) + " is");
            if (!grad || !edges[i].wanted()) continue;
            if (!(grad->shape() == edges[i].shape))
                fail(Kind::runtime, "[backward of '", name_, "'] returned a gradient of shape ",
                     grad->shape().words(), " for input ", i, ", whose shape is ", edges[i].shape.words());
            results[i] = cast(grad, edges[i].dtype);
        }
        return results;
    }
    void release() override { function_.reset(); }
    SmallVector<T>* sums() override { return continues_sums_ ? &sums_ : nullptr; }

  private:
    static nb::list list_of_optional(const SmallVector<T>& tensors) {
        nb::list result;
        for (const T& tensor : tensors) result.append(tensor ? nb::cast(tensor) : nb::none());
        return result;
    }

    std::string name_;
    std::shared_ptr<nb::object> function_;
    bool continues_sums_;
    SmallVector<T> sums_;
};

std::vector<T> attach(const std::string& name, nb::object function, const std::vector<T>& inputs,
                      const std::vector<T>& outputs, bool continues_sums) {
    bool tracked = false;
    for (const T& input : inputs) tracked = tracked || input->tracked() || bool(node_of(*input));
    std::vector<T> results;
    for (const T& output : outputs) results.push_back(output->detach());
    if (!tracked || !grad_enabled()) return results;
    const Ref<Node> node(new CustomNode(name, shared(std::move(function)), inputs, continues_sums));
    if (name == "DistributedDataParallel") {
        // Its last input is an old tensor that reads no parameter: the graph is not older for it.
        node->oldest = node->sequence;
        for (size_t i = 0; i + 1 < inputs.size(); ++i)
            if (const Node* const input = node->edges[i].node.get())
                node->oldest = std::min(node->oldest, input->oldest);
    }
    for (size_t i = 0; i < results.size(); ++i) {
        node->outputs.push_back({results[i]->shape(), results[i]->dtype()});
        if (!is(results[i]->dtype(), inexact)) continue;
        results[i]->make_gradient().node = node;
        results[i]->make_gradient().output = int(i);
    }
    return results;
}

/// (name of the operation, *inputs); an input whose elements were not kept is one without elements.
nb::object grad_fn(const T& x) {
    const Ref<Node> node = node_of(*x);
    if (!node) return nb::none();
    nb::list parts;
    parts.append(nb::str(node->name().c_str()));
    for (const Edge& edge : node->edges) {
        if (edge.leaf || edge.saved) {
            parts.append(edge.leaf ? edge.leaf : edge.saved);
            continue;
        }
        const T shell(new Tensor(Storage::borrow(nullptr, 0, false, nullptr),
                                 Layout{edge.shape, Dims::filled(edge.shape.size(), 0), 0}, edge.dtype));
        if (edge.node) {
            shell->make_gradient().node = edge.node;
            shell->make_gradient().output = edge.output;
        }
        parts.append(shell);
    }
    return nb::tuple(parts);
}

int64_t add_hook(const T& x, nb::object function) {
    if (!x->tracked() && !node_of(*x))
        fail(Kind::runtime, "[register_hook] the tensor does not require gradients");
    Gradient& gradient = x->make_gradient();
    if (!gradient.hooks) gradient.hooks = std::make_shared<Hooks>();
    const auto held = shared(std::move(function));
    const int64_t number = gradient.hooks->next++;
    gradient.hooks->all.push_back({number, [held](const T& grad) -> T {
                                       const nb::gil_scoped_acquire gil;
                                       const nb::object result = (*held)(grad);
                                       return checked_optional_tensor(result, "[hook] returned");
                                   }});
    watch(*x, false);
    return number;
}

/// Called with a leaf whenever a backward pass has added to its gradient.
int64_t add_after_hook(const T& x, nb::object function) {
    if (!x->gradient() || !x->gradient()->required || x->gradient()->node)
        fail(Kind::runtime,
             "[register_post_accumulate_grad_hook] the tensor is no leaf that requires gradients");
    Gradient& gradient = x->make_gradient();
    if (!gradient.after) gradient.after = std::make_shared<Hooks>();
    const auto held = shared(std::move(function));
    const int64_t number = gradient.after->next++;
    gradient.after->all.push_back({number, [held](const T& leaf) -> T {
                                       const nb::gil_scoped_acquire gil;
                                       (*held)(leaf);
                                       return T();
                                   }});
    return number;
}

void remove_from(const std::shared_ptr<Hooks>& hooks, int64_t number) {
    if (hooks) std::erase_if(hooks->all, [&](const auto& hook) { return hook.first == number; });
}

void remove_hook(const T& x, int64_t number) {
    if (x->gradient()) remove_from(x->gradient()->hooks, number);
}

void remove_after_hook(const T& x, int64_t number) {
    if (x->gradient()) remove_from(x->gradient()->after, number);
}

/// Lines of the program that run now, innermost last.
std::string place() {
    const nb::gil_scoped_acquire gil;
    const nb::object lines = nb::module_::import_("traceback").attr("format_stack")(nb::arg("limit") = 6);
    return nb::cast<std::string>(nb::str("").attr("join")(lines));
}

}  // namespace

void bind_autograd(nb::module_& module) {
    module.def("grad_enabled", grad_enabled);
    module.def("set_grad_enabled", set_grad_enabled);
    module.def("set_anomaly", [](bool on) { set_anomaly(on ? place : nullptr); });
    module.def("anomaly", anomaly);
    module.def("backward", [](const std::vector<T>& outputs, const std::vector<std::optional<T>>& grads,
                              const std::vector<T>& inputs, bool retain_graph, bool create_graph,
                              bool accumulate, bool allow_unused) {
        std::vector<T> given;
        for (const auto& grad : grads) given.push_back(grad.value_or(T()));
        return run_backward(outputs, given, inputs, {retain_graph, create_graph, accumulate, allow_unused});
    });
    // With continues_sums the function gets two lists, in which None may be: the gradients of the outputs,
    // and the sums of the gradients that the inputs have so far, to which it adds its own.
    module.def("attach", attach, nb::arg("name"), nb::arg("function"), nb::arg("inputs"), nb::arg("outputs"),
               nb::arg("continues_sums") = false);
    module.def("grad_fn", grad_fn);
    module.def("add_hook", add_hook);
    module.def("remove_hook", remove_hook);
    module.def("add_after_hook", add_after_hook);
    module.def("remove_after_hook", remove_after_hook);
}

namespace {

/// Call `acquire`, which takes the interpreter's lock. Once the interpreter has ended, Python ends a thread
/// that asks for the lock; its destructors would touch Python objects, so it waits for the process to end.
template <typename Acquire>
auto acquire_or_wait(Acquire acquire) {
    if (!Py_IsInitialized()) InsideBlas::wait_for_exit();
    try {
        return acquire();
    } catch (abi::__forced_unwind&) {
        InsideBlas::wait_for_exit();
    }
}

/// The interpreter's lock, of a thread that may outlive the interpreter.
class InterpreterHeld {
  public:
    InterpreterHeld() : state_(acquire_or_wait([] { return PyGILState_Ensure(); })) {}
    ~InterpreterHeld() { PyGILState_Release(state_); }
    InterpreterHeld(const InterpreterHeld&) = delete;

  private:
    PyGILState_STATE state_;
};

/// Ctrl-C, under the interpreter's own handler, which raises KeyboardInterrupt. Runs no code of Python.
bool is_keyboard_interrupt_pending() {
    const InterpreterHeld held;
    static PyObject* const get = nb::getattr(nb::module_::import_("_signal"), "getsignal").release().ptr();
    static PyObject* const usual =
        nb::getattr(nb::module_::import_("_signal"), "default_int_handler").release().ptr();
    const nb::object handler = nb::steal(PyObject_CallFunction(get, "i", SIGINT));
    if (!handler.is_valid()) throw nb::python_error();
    if (handler.ptr() != usual || !PyOS_InterruptOccurred()) return false;
    PyErr_SetInterrupt();  // asking has taken it back
    return true;
}

}  // namespace

}  // namespace accelera::tensora

using namespace accelera::tensora;

NB_MODULE(_tensora, module) {
    nb::intrusive_init(
        [](PyObject* object) noexcept {
            if (interpreter_held()) return Py_INCREF(object);
            const InterpreterHeld held;
            Py_INCREF(object);
        },
        [](PyObject* object) noexcept {
            if (interpreter_held()) return Py_DECREF(object);
            const InterpreterHeld held;
            Py_DECREF(object);
        });
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const Error& error) {
            set_error(error);
        }
    });
    set_interrupt_check([] {
        const InterpreterHeld held;
        // A handler that waits for another thread's work gives the lock up like any other code, but the pool
        // still works for the job that it interrupted.
        const ThreadState before = thread_state;
        thread_state = {};
        thread_state.has_job = before.has_job;
        const int failed = PyErr_CheckSignals();
        thread_state = before;
        if (failed) throw nb::python_error();
    });
    set_interrupt_probe(is_keyboard_interrupt_pending);
    set_interpreter_lock(
        []() -> void* { return PyEval_SaveThread(); },
        [](void* state) {
            acquire_or_wait([&] { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
        });
    bind_dtypes(module);
    bind_memory(module);
    bind_recorder(module);
    bind_cuda(module);
    bind_tensor(module);
    bind_ops(module);
    bind_networks(module);
    bind_autograd(module);
    bind_autocast(module);
    bind_budget(module);
    bind_jit(module);
    bind_state_guard(module);
    module.def("instruction_set", [] { return std::string(instruction_set()); });
    module.def("thread_count", thread_count);
    module.def("set_thread_count", [](int n) {
        require(n >= 1, "[set_num_threads] ", n, "; give at least 1");
        set_thread_count(n);
        set_blas_threads();
    });
}
