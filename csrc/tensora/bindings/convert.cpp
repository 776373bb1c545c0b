// Python numbers, sequences, types and foreign arrays as tensors, and back.
#include "tensora/bindings/convert.h"

#include <cstring>

#include "tensora/bindings/checked_cast.h"
#include "tensora/core/budget.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"
#include "tensora/kernels/loops.h"

namespace nanobind::detail {

using accelera::tensora::Dims;

// NOLINTNEXTLINE(bugprone-exception-escape): `read` stops before the list of axes is full
bool type_caster<Dims>::from_python(handle source, uint32_t flags, cleanup_list*) noexcept {
    return read(source.ptr()) || take_misfit(source, flags & uint32_t(cast_flags::convert));
}

bool type_caster<Dims>::read(PyObject* object) {
    const auto push = [&](PyObject* item) {
        const int64_t number = PyNumber_AsSsize_t(item, PyExc_OverflowError);
        if (number == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
        if (value.size() == Dims::most) return false;
        value.push_back(number);
        return true;
    };
    value = Dims();
    if (PyIndex_Check(object) && !PySequence_Check(object)) return push(object);
    if (!PyTuple_Check(object) && !PyList_Check(object)) return false;
    // A tuple of the items: `__index__` of one of them may change the list.
    const nanobind::object items = nanobind::steal(PySequence_Tuple(object));
    if (!items.is_valid()) {
        PyErr_Clear();
        return false;
    }
    const Py_ssize_t n = PyTuple_Size(items.ptr());
    for (Py_ssize_t i = 0; i < n; ++i) {
        PyObject* const item = PyTuple_GetItem(items.ptr(), i);
        if (!PyIndex_Check(item) || !push(item)) return false;
    }
    return true;
}

handle type_caster<Dims>::from_cpp(const Dims& dims, rv_policy, cleanup_list*) noexcept {
    PyObject* result = PyTuple_New(dims.size());
    for (int i = 0; i < dims.size(); ++i) PyTuple_SetItem(result, i, PyLong_FromLongLong(dims[i]));
    return result;
}

}  // namespace nanobind::detail

namespace accelera::tensora {

void refuse_argument(nb::handle found, bool for_dims) {
    const bool is_array = nb::hasattr(found, "__dlpack__") || PyObject_CheckBuffer(found.ptr()) ||
                          PyList_Check(found.ptr()) || is_number(found);
    fail(Kind::type, "[tensora] ", printed_with_type(found), " where ",
         for_dims ? "an integer or a tuple of integers" : "a Tensor", " is needed",
         is_array && !for_dims ? "; tensora.asarray() makes one" : "");
}

namespace {

bool is_bool(nb::handle object) { return PyBool_Check(object.ptr()); }
bool is_int(nb::handle object) { return PyLong_Check(object.ptr()) && !is_bool(object); }

}  // namespace

DType to_dtype(nb::handle source) {
    DType dtype = DType::f32;
    if (nb::try_cast<DType>(source, dtype)) return dtype;
    PyObject* const object = source.ptr();
    if (object == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::bool_;
    if (object == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::i64;
    if (object == reinterpret_cast<PyObject*>(&PyFloat_Type)) return default_float();
    if (object == reinterpret_cast<PyObject*>(&PyComplex_Type)) return complex_of(default_float());
    nb::object name = nb::getattr(source, "name", nb::none());
    if (name.is_none()) name = nb::getattr(source, "__name__", nb::none());  // a NumPy scalar type
    if (nb::isinstance<nb::str>(source)) name = nb::borrow(source);
    std::string text;
    if (nb::isinstance<nb::str>(name) && nb::try_cast<std::string>(name, text))
        if (const auto found = dtype_named(text)) return *found;
    fail(Kind::dtype, "[tensora] ", printed(source),
         " is no element type; give tensora.float32, 'float32' or the like");
}

PyObject* wrapped(const T& tensor) {
    if (PyObject* const object = tensor->self_py()) return Py_NewRef(object);
    static const nb::handle type = nb::type<Tensor>();
    const nb::object object = nb::inst_take_ownership(type, tensor.get());
    tensor->set_self_py(object.ptr());
    return Py_NewRef(object.ptr());
}

bool is_number(nb::handle object) {
    PyObject* const p = object.ptr();
    return PyFloat_Check(p) || PyLong_Check(p) || PyComplex_Check(p);
}

DType scalar_dtype(nb::handle number, DType other) {
    if (is_bool(number)) return DType::bool_;
    if (is_int(number)) return other == DType::bool_ ? DType::i64 : other;
    if (PyFloat_Check(number.ptr())) return is(other, inexact) ? other : default_float();
    return is(other, complexes) ? other : complex_of(is(other, floats) ? other : default_float());
}

namespace {

/// Store a Python number as an element.
void store(nb::handle number, DType dtype, char* place) {
    visit(dtype, [&]<typename E>(Tag<E>) {
        PyObject* const object = number.ptr();
        E& element = *reinterpret_cast<E*>(place);
        if constexpr (is_integer<E>) {
            if (is_int(number) || is_bool(number)) {
                int overflow = 0;
                const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
                unsigned long long large = 0;
                bool fits = overflow == 0 &&
                            (std::is_same_v<E, uint64_t> ? value >= 0 : (long long)(E(value)) == value);
                if (overflow > 0 && std::is_same_v<E, uint64_t>) {
                    large = PyLong_AsUnsignedLongLong(object);
                    fits = !PyErr_Occurred();
                    PyErr_Clear();
                }
                require(fits, "[tensora] the integer ", printed(number), " does not fit ", name_of(dtype));
                element = overflow > 0 ? E(large) : E(value);
                return;
            }
        }
        if (PyComplex_Check(object)) {
            if (!is_complex<E>)
                fail(Kind::dtype, "[tensora] a complex number for elements of type ", name_of(dtype));
            element = cast_value<E>(C128(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object)));
            return;
        }
        const double value = PyFloat_AsDouble(object);
        if (value == -1 && PyErr_Occurred()) throw nb::python_error();
        element = cast_value<E>(value);
    });
}

}  // namespace

T scalar_tensor(nb::handle number, DType dtype) {
    alignas(C128) char element[sizeof(C128)];
    store(number, dtype, element);  // may call Python functions, which must not run while memory is written
    const T result = Tensor::empty({}, dtype);
    std::memcpy(result->bytes(), element, size_t(size_of(dtype)));
    return result;
}

T operand(nb::handle object, DType other) {
    T tensor;
    if (nb::try_cast<T>(object, tensor) && tensor) return tensor;
    if (is_number(object)) return scalar_tensor(object, scalar_dtype(object, other));
    fail(Kind::type, "[tensora] a tensor or a number is needed, not ", printed(object.type()),
         "; tensora.asarray() converts");
}

// --- nested sequences ------------------------------------------------------------------------------------

namespace {

/// A tensor or an array of another library among the items of a list, or null.
T array_item(nb::handle item) {
    T tensor;
    if (nb::try_cast<T>(item, tensor) && tensor) return tensor;
    PyObject* const p = item.ptr();
    if (is_number(item) || PyList_Check(p) || PyTuple_Check(p)) return {};
    if (PyObject_CheckBuffer(p)) return from_buffer(item);
    return PyObject_HasAttrString(p, "__dlpack__") ? from_dlpack(item, std::nullopt) : T();
}

/// Number whose conversion to an element calls no Python function.
nb::object plain_number(nb::handle number) {
    PyObject* const p = number.ptr();
    if (is_int(number) && Py_TYPE(p) != &PyLong_Type)
        return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type)).attr("__int__")(number);
    return nb::borrow(number);
}

nb::object frozen(nb::handle object, int depth);

nb::object frozen_sequence(nb::handle sequence, int depth) {
    require_shape(depth < Dims::most, "[tensora] lists nested in more than ", Dims::most,
                  " levels; a tensor has at most that many axes");
    const nb::object items = nb::steal(PySequence_Tuple(sequence.ptr()));
    if (!items.is_valid()) throw nb::python_error();
    const Py_ssize_t n = PyTuple_Size(items.ptr());
    const nb::object result = nb::steal(PyTuple_New(n));
    if (!result.is_valid()) throw nb::python_error();
    for (Py_ssize_t i = 0; i < n; ++i) {
        nb::object item = frozen(PyTuple_GetItem(items.ptr(), i), depth + 1);
        PyTuple_SetItem(result.ptr(), i, item.release().ptr());
    }
    return result;
}

/// Nested tuples of tensors and numbers with the contents of nested sequences. All Python functions of the
/// items (`__float__`, `__dlpack__`, ...) run here: they may change the sequences, and another thread may.
nb::object frozen(nb::handle object, int depth) {
    PyObject* const p = object.ptr();
    if (PyFloat_CheckExact(p) || PyLong_CheckExact(p)) return nb::borrow(object);
    if (const T tensor = array_item(object)) return nb::cast(tensor->detach());
    if (is_number(object)) return plain_number(object);
    if (PyList_Check(p) || PyTuple_Check(p)) return frozen_sequence(object, depth);
    if (PyObject_HasAttrString(p, "__float__")) {
        nb::object number = nb::steal(PyNumber_Float(p));
        if (!number.is_valid()) throw nb::python_error();
        return number;
    }
    fail(Kind::type, "[tensora] no tensor is made of ", printed(object.type()),
         "; give numbers, nested lists of them, or an array");
}

/// Shape and type of nested tuples from `frozen`.
struct Nested {
    Dims shape;
    std::optional<DType> dtype;

    void look(nb::handle object, int depth) {
        if (PyTuple_CheckExact(object.ptr())) {
            const Py_ssize_t n = PyTuple_Size(object.ptr());
            meet(depth, n);
            for (Py_ssize_t i = 0; i < n; ++i) look(PyTuple_GetItem(object.ptr(), i), depth + 1);
        } else if (is_number(object)) {
            end(depth);
            merge(is_bool(object)  ? DType::bool_
                  : is_int(object) ? DType::i64
                                   : scalar_dtype(object, default_float()));
        } else {
            const T tensor = nb::cast<T>(object);
            for (int64_t extent : tensor->shape()) meet(depth++, extent);
            end(depth);
            merge(tensor->dtype());
        }
    }

    bool closed = false;
    void meet(int depth, int64_t extent) {
        if (depth < shape.size())
            require(shape[depth] == extent, "[tensora] nested lists of unequal lengths, ", shape[depth],
                    " and ", extent, " at depth ", depth);
        else
            require(!closed, "[tensora] nested lists of unequal depth"), shape.push_back(extent);
    }
    void end(int depth) {
        require(depth == shape.size(), "[tensora] nested lists of unequal depth");
        closed = true;
    }
    void merge(DType next) { dtype = dtype ? promote(*dtype, next) : next; }
};

void fill(nb::handle object, DType dtype, char*& place) {
    if (PyTuple_CheckExact(object.ptr())) {
        const Py_ssize_t n = PyTuple_Size(object.ptr());
        for (Py_ssize_t i = 0; i < n; ++i) fill(PyTuple_GetItem(object.ptr(), i), dtype, place);
    } else if (is_number(object)) {
        store(object, dtype, place);
        place += size_of(dtype);
    } else {
        const T part = contiguous(to_device(cast(nb::cast<T>(object), dtype), cpu));
        const int64_t nbytes = part->size() * size_of(dtype);
        std::memcpy(place, part->bytes(), size_t(nbytes));
        place += nbytes;
    }
}

}  // namespace

void require_fit(const Dims& shape, DType dtype, Device device) {
    if (StepBudget::covers(device)) StepBudget::here()->require_fit(shape.product() * size_of(dtype));
}

T tensor_from(nb::handle source, std::optional<DType> dtype) {
    T tensor;
    if (nb::try_cast<T>(source, tensor) && tensor) return cast(copy(tensor), dtype.value_or(tensor->dtype()));
    if (!is_number(source) && !PyList_Check(source.ptr()) && !PyTuple_Check(source.ptr())) {
        if (PyObject_HasAttrString(source.ptr(), "__dlpack__")) {
            const T foreign = from_dlpack(source, std::nullopt);
            return dtype && *dtype != foreign->dtype() ? cast(foreign, *dtype) : copy(foreign);
        }
        if (PyObject_CheckBuffer(source.ptr())) {
            const T foreign = from_buffer(source);
            return dtype && *dtype != foreign->dtype() ? cast(foreign, *dtype) : copy(foreign);
        }
    }
    const nb::object contents = frozen(source, 0);
    Nested nested;
    nested.look(contents, 0);
    const DType type = dtype ? *dtype : nested.dtype.value_or(default_float());
    require_fit(nested.shape, type, DeviceScope::current());
    const T result = Tensor::empty(nested.shape, type);
    if (result->storage()->lacks_contents()) return result;
    char* place = result->bytes();
    fill(contents, type, place);
    return result;
}

nb::object scalar_to_python(const Tensor& tensor) {
    require_shape(tensor.size() == 1, "[tensora] a tensor of shape ", tensor.shape().words(),
                  " is not one number; only a tensor with one element is");
    if (Capture::here()) Capture::here()->refuse_read(tensor, "a Python number");
    if (!tensor.device().is_cpu()) return scalar_to_python(*to_device(tensor.detach(), cpu));
    return visit(tensor.dtype(), [&]<typename E>(Tag<E>) -> nb::object {
        const E value = *tensor.data<E>();
        if constexpr (std::is_same_v<E, Bool>)
            return nb::bool_(bool(value));
        else if constexpr (is_complex<E>)
            return nb::steal(PyComplex_FromDoubles(double(value.real()), double(value.imag())));
        else if constexpr (is_integer<E>)
            return nb::int_(value);
        else
            return nb::float_(double(value));
    });
}

nb::object list_of(const Tensor& tensor) {
    if (!tensor.device().is_cpu()) return list_of(*to_device(tensor.detach(), cpu));
    if (tensor.dims() == 0) return scalar_to_python(tensor);
    nb::list result;
    Layout layout = tensor.layout();
    const int64_t extent = layout.shape[0], stride = layout.strides[0];
    layout.shape.erase(0);
    layout.strides.erase(0);
    for (int64_t i = 0; i < extent; ++i) {
        Layout one = layout;
        one.offset += i * stride;
        result.append(list_of(*tensor.alias(one)));
    }
    return result;
}

}  // namespace accelera::tensora
