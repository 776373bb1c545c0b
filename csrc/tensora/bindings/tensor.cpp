// The class Tensor: attributes, operators, and what it shares with the array API's array object.
#include <nanobind/stl/pair.h>

#include "tensora/bindings/checked_cast.h"
#include "tensora/bindings/convert.h"
#include "tensora/core/autocast.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"

namespace accelera::tensora {

extern PyType_Slot buffer_slots[];

namespace {

/// `a op b`, `number op b`, and `a op= b` of one operation. Operators are slots of the type, not methods: a
/// small operation costs no more than the call of a method does.
struct Operator {
    const char* op;
    int slot;
    int in_place_slot;
};

constexpr Operator operators[] = {
    {"add", Py_nb_add, Py_nb_inplace_add},
    {"subtract", Py_nb_subtract, Py_nb_inplace_subtract},
    {"multiply", Py_nb_multiply, Py_nb_inplace_multiply},
    {"divide", Py_nb_true_divide, Py_nb_inplace_true_divide},
    {"floor_divide", Py_nb_floor_divide, Py_nb_inplace_floor_divide},
    {"remainder", Py_nb_remainder, Py_nb_inplace_remainder},
    {"pow", Py_nb_power, Py_nb_inplace_power},
    {"bitwise_and", Py_nb_and, Py_nb_inplace_and},
    {"bitwise_or", Py_nb_or, Py_nb_inplace_or},
    {"bitwise_xor", Py_nb_xor, Py_nb_inplace_xor},
    {"bitwise_left_shift", Py_nb_lshift, Py_nb_inplace_lshift},
    {"bitwise_right_shift", Py_nb_rshift, Py_nb_inplace_rshift},
};
constexpr int n_operators = int(std::size(operators));
/// In the order of Py_LT to Py_GE.
constexpr const char* comparisons[] = {"less",      "less_equal", "equal",
                                       "not_equal", "greater",    "greater_equal"};
constexpr std::pair<const char*, int> signs[] = {{"negative", Py_nb_negative},
                                                 {"positive", Py_nb_positive},
                                                 {"abs", Py_nb_absolute},
                                                 {"bitwise_not", Py_nb_invert}};

const Op* operator_ops[n_operators];
const Op* comparison_ops[std::size(comparisons)];
const Op* sign_ops[std::size(signs)];
PyTypeObject* tensor_type = nullptr;

/// The tensor that a Python object is, or null.
Tensor* tensor_in(PyObject* object) {
    const bool is_tensor = Py_TYPE(object) == tensor_type || PyObject_TypeCheck(object, tensor_type);
    return is_tensor ? nb::inst_ptr<Tensor>(object) : nullptr;
}

/// A copy of an array of NumPy, or null for another object.
T copy_of_array(PyObject* object) {
    const bool is_array =
        PyObject_CheckBuffer(object) && PyObject_HasAttrString(object, "__array_interface__");
    return is_array ? copy(from_buffer(object)) : T();
}

/// A tensor from the other side of an operator, or null when it is for the other side to handle. Arrays and
/// scalars of NumPy are copied: nothing here would see that they are written to.
T other_operand(PyObject* object, DType dtype) {
    if (Tensor* const tensor = tensor_in(object)) return T(tensor);
    if (is_number(object)) return scalar_tensor(object, scalar_dtype(object, dtype));
    return copy_of_array(object);
}

/// `other_operand` of a matrix product, which takes no numbers.
T matrix_operand(PyObject* object) {
    if (Tensor* const tensor = tensor_in(object)) return T(tensor);
    return is_number(object) ? T() : copy_of_array(object);
}

/// What a slot returns: the body's object, or null with the exception of Python set.
template <typename Body>
PyObject* guarded(Body body) noexcept {
    try {
        return body();
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

PyObject* run_operator(const Op& op, PyObject* left, PyObject* right) {
    Tensor* const first = tensor_in(left);
    Tensor* const second = tensor_in(right);
    if (first && second) return wrapped(run(op, no_params, T(first), T(second)));
    const DType dtype = autocast_type(op.autocast, first ? *first : *second);
    const T other = other_operand(first ? right : left, dtype);
    if (!other) return Py_NewRef(Py_NotImplemented);
    return wrapped(first ? run(op, no_params, T(first), other) : run(op, no_params, other, T(second)));
}

template <int i>
PyObject* binary_slot(PyObject* left, PyObject* right) noexcept {
    return guarded([&] { return run_operator(*operator_ops[i], left, right); });
}

template <int i>
PyObject* in_place_slot(PyObject* self, PyObject* right) noexcept {
    return guarded([&]() -> PyObject* {
        const T target(nb::inst_ptr<Tensor>(self));
        const T other = other_operand(right, target->dtype());
        if (!other) return Py_NewRef(Py_NotImplemented);
        const T inputs[] = {target, other};
        apply_in_place(*operator_ops[i], inputs, target);
        return Py_NewRef(self);
    });
}

PyObject* power_slot(PyObject* left, PyObject* right, PyObject* modulus) noexcept {
    return guarded([&] {
        if (modulus != Py_None) fail(Kind::type, "[pow] a third argument; take the remainder of the result");
        static const Op& pow_op = op_named("pow");
        return run_operator(pow_op, left, right);
    });
}

template <int i>
PyObject* sign_slot(PyObject* self) noexcept {
    return guarded([&] { return wrapped(run(*sign_ops[i], no_params, T(nb::inst_ptr<Tensor>(self)))); });
}

PyObject* compare_slot(PyObject* left, PyObject* right, int which) noexcept {
    return guarded([&] { return run_operator(*comparison_ops[which], left, right); });
}

PyObject* matmul_slot(PyObject* left, PyObject* right) noexcept {
    return guarded([&]() -> PyObject* {
        const T first = matrix_operand(left), second = matrix_operand(right);
        if (!first || !second) return Py_NewRef(Py_NotImplemented);
        return wrapped(matmul(first, second));
    });
}

PyObject* in_place_matmul_slot(PyObject* self, PyObject* right) noexcept {
    return guarded([&]() -> PyObject* {
        const T other = matrix_operand(right);
        if (!other) return Py_NewRef(Py_NotImplemented);
        const T target(nb::inst_ptr<Tensor>(self));
        const AutocastPause as_given;
        write_in_place(target, matmul(target, other), "matmul");
        return Py_NewRef(self);
    });
}

Py_hash_t hash_slot(PyObject* self) noexcept {
    return Py_hash_t(reinterpret_cast<uintptr_t>(nb::inst_ptr<Tensor>(self)) >> 4);
}

template <typename Function>
PyType_Slot slot(int number, Function* function) {
    return {number, reinterpret_cast<void*>(function)};
}

/// Slots of the type: operators, and the buffer protocol.
std::vector<PyType_Slot> type_slots() {
    std::vector<PyType_Slot> slots;
    for (const PyType_Slot* one = buffer_slots; one->slot; ++one) slots.push_back(*one);
    [&]<int... i>(std::integer_sequence<int, i...>) {
        (slots.push_back(slot(operators[i].slot, binary_slot<i>)), ...);
        (slots.push_back(slot(operators[i].in_place_slot, in_place_slot<i>)), ...);
    }(std::make_integer_sequence<int, n_operators>());
    [&]<int... i>(std::integer_sequence<int, i...>) {
        (slots.push_back(slot(signs[i].second, sign_slot<i>)), ...);
    }(std::make_integer_sequence<int, int(std::size(signs))>());
    for (PyType_Slot& each : slots)
        if (each.slot == Py_nb_power) each = slot(Py_nb_power, power_slot);
    slots.push_back(slot(Py_nb_matrix_multiply, matmul_slot));
    slots.push_back(slot(Py_nb_inplace_matrix_multiply, in_place_matmul_slot));
    slots.push_back(slot(Py_tp_richcompare, compare_slot));
    slots.push_back(slot(Py_tp_hash, hash_slot));
    slots.push_back({0, nullptr});
    return slots;
}

void find_operators() {
    for (int i = 0; i < n_operators; ++i) operator_ops[i] = &op_named(operators[i].op);
    for (size_t i = 0; i < std::size(comparisons); ++i) comparison_ops[i] = &op_named(comparisons[i]);
    for (size_t i = 0; i < std::size(signs); ++i) sign_ops[i] = &op_named(signs[i].first);
}

void bind_conversions(nb::class_<Tensor>& type) {
    type.def("item", [](const T& x) { return scalar_to_python(*x); }, "The one element as a Python number.");
    type.def("tolist", [](const T& x) { return list_of(*x); }, "Nested lists of Python numbers.");
    type.def("__bool__", [](const T& x) {
        require(x->size() == 1, "[tensora] the truth of a tensor with ", x->size(),
                " elements is not one; use any() or all()");
        if (Capture::here()) Capture::here()->refuse_read(*x, "a truth");
        return *to_device(cast(x->detach(), DType::bool_), cpu)->data<bool>();
    });
    type.def("__float__", [](const T& x) {
        if (is(x->dtype(), complexes))
            fail(Kind::type, "[tensora] a complex tensor is no float; take real() before");
        return nb::float_(scalar_to_python(*x));
    });
    type.def("__int__", [](const T& x) {
        if (is(x->dtype(), complexes))
            fail(Kind::type, "[tensora] a complex tensor is no int; take real() before");
        return nb::int_(scalar_to_python(*x));
    });
    type.def("__complex__", [](const T& x) {
        return nb::steal(PyNumber_Float(nb::int_(0).ptr())).is_valid()
                   ? nb::steal(PyObject_CallFunctionObjArgs((PyObject*)&PyComplex_Type,
                                                            scalar_to_python(*x).ptr(), nullptr))
                   : nb::none();
    });
    type.def("__index__", [](const T& x) {
        if (x->dims() != 0 || !is(x->dtype(), integers))
            fail(Kind::dtype, "[tensora] a ", name_of(x->dtype()), " tensor of shape ", x->shape().words(),
                 " is no index; only a 0-d integer one is");
        return scalar_to_python(*x);
    });
    type.def("__len__", [](const T& x) {
        if (x->dims() == 0) fail(Kind::type, "[tensora] a 0-d tensor has no length");
        return x->shape()[0];
    });
}

void check_gradient(const Tensor& x, const Tensor& grad) {
    if (!(grad.shape() == x.shape()))
        fail(Kind::shape, "[grad] shape ", grad.shape().words(), " for a tensor of shape ",
             x.shape().words());
    if (grad.dtype() != x.dtype())
        fail(Kind::dtype, "[grad] elements of type ", name_of(grad.dtype()), " for a tensor of ",
             name_of(x.dtype()), "; convert the gradient with .astype()");
    require(grad.device() == x.device(), "[grad] on ", name_of(grad.device()), " for a tensor on ",
            name_of(x.device()), "; copy the gradient with .to()");
}

void bind_gradient(nb::class_<Tensor>& type) {
    type.def_prop_rw(
        "requires_grad", [](const T& x) { return x->tracked() || bool(node_of(*x)); },
        [](const T& x, bool wanted) {
            if (wanted && !is(x->dtype(), inexact))
                fail(Kind::dtype, "[requires_grad] elements of type ", name_of(x->dtype()),
                     " have no gradients; only floating-point and complex ones do");
            if (node_of(*x)) {
                if (!wanted)
                    fail(Kind::runtime,
                         "[requires_grad] the tensor was computed from others; use .detach() for one outside "
                         "of the graph");
                return;
            }
            if (wanted) {
                x->make_gradient().required = true;
                x->storage()->set_role(Role::parameter);
            } else {
                x->drop_gradient();
            }
        },
        "Whether operations on the tensor are recorded, so that gradients flow back to it.");
    type.def_prop_rw(
        "grad",
        [](const T& x) {
            if (Capture* const capture = Capture::here()) [[unlikely]]
                capture->gradient_read(x);
            return collected_gradient(*x);
        },
        [](const T& x, nb::handle grad) {
            const T value = checked_optional_tensor(grad, "[grad] assigned");
            if (value) check_gradient(*x, *value);
            x->make_gradient().grad = std::make_shared<T>(value);
            if (Capture::here()) Capture::here()->gradient_set(x);
        },
        nb::for_setter(nb::arg("grad").none()), "Gradient collected by backward(), or None.");
    type.def_prop_ro(
        "is_leaf", [](const T& x) { return !node_of(*x); }, "Whether no recorded operation made the tensor.");
    type.def(
        "backward",
        [](const T& x, const T& gradient, std::optional<bool> retain_graph, bool create_graph) {
            std::vector<T> weights;
            if (gradient) weights.push_back(gradient);
            run_backward({x}, weights, {}, {retain_graph.value_or(create_graph), create_graph, true, true});
        },
        nb::arg("gradient").none() = nb::none(), nb::kw_only(), nb::arg("retain_graph") = nb::none(),
        nb::arg("create_graph") = false,
        "Add to `.grad` of each leaf the gradient of this tensor, weighted by `gradient`.");
    type.def("detach", [](const T& x) { return x->detach(); }, "The same memory outside of any graph.");
    type.def(
        "retain_grad", [](const T& x) { watch(*x, true); },
        "Keep the gradient of a tensor that is no leaf in `grad`.");
}

}  // namespace

/// As DLPack numbers devices.
std::pair<int, int> dlpack_device(const Tensor& x) {
    return x.device().is_cpu() ? std::pair(1, 0) : std::pair(2, int(x.device().index));
}

void bind_tensor(nb::module_& module) {
    find_operators();
    static const std::vector<PyType_Slot> slots = type_slots();
    nb::class_<Tensor> type(
        module, "Tensor", nb::type_slots(slots.data()), nb::is_weak_referenceable(),
        nb::intrusive_ptr<Tensor>(
            [](Tensor* tensor, PyObject* object) noexcept { tensor->set_self_py(object); }),
        "N-dimensional array of one element type that can record operations for automatic differentiation.");
    type.def(
        "__init__",
        [](Tensor* self, const T& other) {
            new (self) Tensor(other->storage(), other->layout(), other->dtype());
        },
        nb::arg("other"),
        "Tensor over the memory of another, outside of any graph; classes of tensors begin so.");
    type.def_prop_ro("shape", [](const T& x) { return x->shape(); }, "Extent of each axis.");
    type.def_prop_ro(
        "strides", [](const T& x) { return x->strides(); },
        "Distance of neighbours along each axis, in elements.");
    type.def_prop_ro("ndim", [](const T& x) { return x->dims(); }, "Number of axes.");
    type.def_prop_ro("size", [](const T& x) { return x->size(); }, "Number of elements.");
    type.def_prop_ro("itemsize", [](const T& x) { return size_of(x->dtype()); }, "Bytes of one element.");
    type.def_prop_ro(
        "nbytes", [](const T& x) { return x->size() * size_of(x->dtype()); }, "Bytes of all elements.");
    type.def_prop_ro(
        "device", [](const T& x) { return name_of(x->device()); },
        "Device of the memory: \"cpu\", \"cuda:0\" and so on.");
    type.def_prop_ro("dtype", [](const T& x) { return x->dtype(); }, "Type of the elements.");
    type.def(
        "is_contiguous", [](const T& x) { return x->contiguous(); },
        "Whether the elements lie in order without gaps.");
    type.def("_version", [](const T& x) { return x->storage()->version(); });
    type.def(
        "__dlpack__",
        [](const T& x, nb::handle stream, nb::handle max_version, nb::handle device,
           std::optional<bool> copy) {
            const auto wanted =
                checked_cast<std::optional<int64_t>>(stream, "[__dlpack__] stream is", "None or an integer");
            const auto place =
                checked_cast<std::optional<std::pair<int, int>>>(device, "[__dlpack__] dl_device is",
                                                                 "None or a tuple (device type, number)")
                    .value_or(dlpack_device(*x));
            if (place == dlpack_device(*x)) return to_dlpack(x, max_version, copy, wanted);
            if (place.first != 1 || (copy && !*copy)) {
                PyErr_SetString(
                    PyExc_BufferError,
                    "__dlpack__: the memory is on another device than the one asked for, and only "
                    "the CPU is copied to, if copy is not False");
                throw nb::python_error();
            }
            return to_dlpack(to_device(x->detach(), cpu), max_version, copy, std::nullopt);
        },
        nb::kw_only(), nb::arg("stream").none() = nb::none(), nb::arg("max_version").none() = nb::none(),
        nb::arg("dl_device").none() = nb::none(), nb::arg("copy").none() = nb::none());
    type.def("__dlpack_device__", [](const T& x) { return dlpack_device(*x); });
    type.def(
        "__getitem__", [](const T& x, nb::handle key) { return get_item(x, key); }, nb::arg("key").none());
    type.def(
        "__setitem__", [](const T& x, nb::handle key, nb::handle value) { set_item(x, key, value); },
        nb::arg("key").none(), nb::arg("value"));
    tensor_type = reinterpret_cast<PyTypeObject*>(type.ptr());
    bind_conversions(type);
    bind_gradient(type);
}

}  // namespace accelera::tensora
