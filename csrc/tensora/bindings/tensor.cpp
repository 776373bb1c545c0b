// The class Tensor: attributes, operators, and what it shares with the array API's array object.
#include "tensora/bindings/convert.h"
#include "tensora/functions.h"

namespace accelera::tensora {

extern PyType_Slot tensor_slots[];

namespace {

/// `a op b`, `number op b`, and `a op= b` of one operation.
struct Operator {
    const char* name;
    const char* op;
    bool reflected;
    bool in_place;
};

constexpr Operator binary_operators[] = {
    {"add", "add", true, true},
    {"sub", "subtract", true, true},
    {"mul", "multiply", true, true},
    {"truediv", "divide", true, true},
    {"floordiv", "floor_divide", true, true},
    {"mod", "remainder", true, true},
    {"pow", "pow", true, true},
    {"and", "bitwise_and", true, true},
    {"or", "bitwise_or", true, true},
    {"xor", "bitwise_xor", true, true},
    {"lshift", "bitwise_left_shift", true, true},
    {"rshift", "bitwise_right_shift", true, true},
    {"eq", "equal", false, false},
    {"ne", "not_equal", false, false},
    {"lt", "less", false, false},
    {"le", "less_equal", false, false},
    {"gt", "greater", false, false},
    {"ge", "greater_equal", false, false},
};

nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

/// A tensor from the other side of an operator, or null when it is for the other side to handle. Arrays and
/// scalars of NumPy are copied: nothing here would see that they are written to.
T other_operand(nb::handle object, DType dtype) {
    T tensor;
    if (nb::try_cast<T>(object, tensor) && tensor) return tensor;
    if (is_number(object)) return scalar_tensor(object, scalar_dtype(object, dtype));
    const bool is_array =
        PyObject_CheckBuffer(object.ptr()) && PyObject_HasAttrString(object.ptr(), "__array_interface__");
    return is_array ? copy(from_buffer(object)) : T();
}

void bind_operators(nb::class_<Tensor>& type) {
    for (const Operator& each : binary_operators) {
        const Op* const op = &op_named(each.op);
        const std::string name = std::string("__") + each.name + "__";
        type.def(
            name.c_str(), [op](const T& a, const T& b) { return run(*op, no_params, a, b); },
            nb::is_operator());
        type.def(
            name.c_str(),
            [op](const T& a, nb::handle b) -> nb::object {
                const T other = other_operand(b, a->dtype());
                return other ? nb::cast(run(*op, no_params, a, other)) : not_implemented();
            },
            nb::is_operator());
        if (each.reflected)
            type.def((std::string("__r") + each.name + "__").c_str(),
                     [op](const T& b, nb::handle a) -> nb::object {
                         const T other = other_operand(a, b->dtype());
                         return other ? nb::cast(run(*op, no_params, other, b)) : not_implemented();
                     },
                     nb::is_operator());
        if (each.in_place)
            type.def((std::string("__i") + each.name + "__").c_str(),
                     [op](const T& a, nb::handle b) -> nb::object {
                         const T other = other_operand(b, a->dtype());
                         if (!other) return not_implemented();
                         const T inputs[] = {a, other};
                         apply_in_place(*op, inputs, a);
                         return nb::cast(a);
                     },
                     nb::is_operator());
    }
    for (const auto& [name, op_name] :
         {std::pair("__neg__", "negative"), std::pair("__pos__", "positive"), std::pair("__abs__", "abs"),
          std::pair("__invert__", "bitwise_not")}) {
        const Op* const op = &op_named(op_name);
        type.def(name, [op](const T& x) { return run(*op, no_params, x); }, nb::is_operator());
    }
    type.def("__matmul__", [](const T& a, const T& b) { return matmul(a, b); }, nb::is_operator());
    type.def(
        "__imatmul__",
        [](const T& a, const T& b) {
            write_in_place(a, matmul(a, b), "matmul");
            return a;
        },
        nb::is_operator());
}

template <typename E>
E number_of(const T& x, bool exact) {
    if (x->dims() != 0 && exact)
        fail(Kind::type, "tensora: a tensor of shape ", x->shape().words(),
             " is no index; only a 0-d integer tensor is");
    if constexpr (std::is_same_v<E, int64_t>) {
        if (is(x->dtype(), inexact) && exact)
            fail(Kind::type, "tensora: a tensor of ", name_of(x->dtype()), " is no index");
    }
    return nb::cast<E>(scalar_to_python(*x));
}

void bind_conversions(nb::class_<Tensor>& type) {
    type.def("item", [](const T& x) { return scalar_to_python(*x); }, "The one element as a Python number.");
    type.def("tolist", [](const T& x) { return list_of(*x); }, "Nested lists of Python numbers.");
    type.def("__bool__", [](const T& x) {
        require(x->size() == 1, "tensora: the truth of a tensor with ", x->size(),
                " elements is not one; use any() or all()");
        return *cast(x->detach(), DType::bool_)->data<bool>();
    });
    type.def("__float__", [](const T& x) {
        if (is(x->dtype(), complexes))
            fail(Kind::type, "tensora: a complex tensor is no float; take real() before");
        return nb::float_(scalar_to_python(*x));
    });
    type.def("__int__", [](const T& x) {
        if (is(x->dtype(), complexes))
            fail(Kind::type, "tensora: a complex tensor is no int; take real() before");
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
            fail(Kind::type, "tensora: a ", name_of(x->dtype()), " tensor of shape ", x->shape().words(),
                 " is no index; only a 0-d integer one is");
        return scalar_to_python(*x);
    });
    type.def("__len__", [](const T& x) {
        if (x->dims() == 0) fail(Kind::type, "tensora: a 0-d tensor has no length");
        return x->shape()[0];
    });
    type.def("__hash__", [](const T& x) { return reinterpret_cast<uintptr_t>(x.get()) >> 4; });
}

void bind_gradient(nb::class_<Tensor>& type) {
    type.def_prop_rw(
        "requires_grad", [](const T& x) { return x->tracked() || bool(node_of(*x)); },
        [](const T& x, bool wanted) {
            if (wanted && !is(x->dtype(), inexact))
                fail(Kind::type, "requires_grad: elements of type ", name_of(x->dtype()),
                     " have no gradients; only floating-point and complex ones do");
            if (node_of(*x)) {
                if (!wanted)
                    fail(Kind::runtime,
                         "requires_grad: the tensor was computed from others; use .detach() for one outside "
                         "of the graph");
                return;
            }
            if (wanted)
                x->make_gradient().required = true;
            else
                x->drop_gradient();
        },
        "Whether operations on the tensor are recorded, so that gradients flow back to it.");
    type.def_prop_rw(
        "grad", [](const T& x) { return x->gradient() && x->gradient()->grad ? *x->gradient()->grad : T(); },
        [](const T& x, nb::handle grad) {
            T value;
            if (!grad.is_none()) value = nb::cast<T>(grad);
            if (value && !(value->shape() == x->shape()))
                fail(Kind::value, "grad: shape ", value->shape().words(), " for a tensor of shape ",
                     x->shape().words());
            x->make_gradient().grad = std::make_shared<T>(value);
        },
        nb::for_setter(nb::arg("grad").none()), "Gradient collected by backward(), or None.");
    type.def_prop_ro(
        "is_leaf", [](const T& x) { return !node_of(*x); }, "Whether no recorded operation made the tensor.");
    type.def("detach", [](const T& x) { return x->detach(); }, "The same memory outside of any graph.");
    type.def(
        "retain_grad", [](const T& x) { watch(*x, true); },
        "Keep the gradient of a tensor that is no leaf in `grad`.");
}

}  // namespace

void bind_tensor(nb::module_& module) {
    nb::class_<Tensor> type(
        module, "Tensor", nb::type_slots(tensor_slots), nb::is_weak_referenceable(),
        nb::intrusive_ptr<Tensor>(
            [](Tensor* tensor, PyObject* object) noexcept { tensor->set_self_py(object); }),
        "N-dimensional array of one element type that can record operations for automatic differentiation.");
    type.def_prop_ro("shape", [](const T& x) { return x->shape(); }, "Extent of each axis.");
    type.def_prop_ro(
        "strides", [](const T& x) { return x->strides(); },
        "Distance of neighbours along each axis, in elements.");
    type.def_prop_ro("ndim", [](const T& x) { return x->dims(); }, "Number of axes.");
    type.def_prop_ro("size", [](const T& x) { return x->size(); }, "Number of elements.");
    type.def_prop_ro("itemsize", [](const T& x) { return size_of(x->dtype()); }, "Bytes of one element.");
    type.def_prop_ro(
        "nbytes", [](const T& x) { return x->size() * size_of(x->dtype()); }, "Bytes of all elements.");
    type.def_prop_ro("dtype", [](const T& x) { return x->dtype(); }, "Type of the elements.");
    type.def(
        "is_contiguous", [](const T& x) { return x->contiguous(); },
        "Whether the elements lie in order without gaps.");
    type.def("_version", [](const T& x) { return x->storage()->version(); });
    type.def(
        "__dlpack__",
        [](const T& x, nb::handle stream, nb::handle max_version, nb::handle device,
           std::optional<bool> copy) {
            (void)stream;
            if (!device.is_none() && nb::cast<int>(device[0]) != 1) {
                PyErr_SetString(PyExc_BufferError, "__dlpack__: only CPU memory can be exported");
                throw nb::python_error();
            }
            return to_dlpack(x, max_version, copy);
        },
        nb::kw_only(), nb::arg("stream").none() = nb::none(), nb::arg("max_version").none() = nb::none(),
        nb::arg("dl_device").none() = nb::none(), nb::arg("copy").none() = nb::none());
    type.def("__dlpack_device__", [](const T&) { return nb::make_tuple(1, 0); });
    type.def(
        "__getitem__", [](const T& x, nb::handle key) { return get_item(x, key); }, nb::arg("key").none());
    type.def(
        "__setitem__", [](const T& x, nb::handle key, nb::handle value) { set_item(x, key, value); },
        nb::arg("key").none(), nb::arg("value"));
    bind_operators(type);
    bind_conversions(type);
    bind_gradient(type);
}

}  // namespace accelera::tensora
