#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "tensora/core/autograd.h"

namespace nb = nanobind;

namespace nanobind::detail {

/// Ref<Tensor> as the Python object of its tensor.
template <typename Object>
struct type_caster<accelera::tensora::Ref<Object>> {
    using Caster = make_caster<Object>;
    static constexpr bool IsClass = true;
    NB_TYPE_CASTER(accelera::tensora::Ref<Object>, Caster::Name)

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        Caster caster;
        if (!caster.from_python(source, flags, cleanup)) return false;
        value = Value(caster.operator Object*());
        return true;
    }
    static handle from_cpp(const accelera::tensora::Ref<Object>& value, rv_policy policy,
                           cleanup_list* cleanup) noexcept {
        if (!value) return none().release();
        return Caster::from_cpp(value.get(), policy, cleanup);
    }
};

/// Dims as a tuple; from any sequence of integers, or one integer.
template <>
struct type_caster<accelera::tensora::Dims> {
    NB_TYPE_CASTER(accelera::tensora::Dims, const_name("tuple[int, ...]"))

    bool from_python(handle source, uint32_t, cleanup_list*) noexcept;
    static handle from_cpp(const accelera::tensora::Dims& dims, rv_policy, cleanup_list*) noexcept;
};

}  // namespace nanobind::detail

namespace accelera::tensora {

/// Type from a `dtype`, its name, a NumPy dtype or a Python type.
DType to_dtype(nb::handle source);
/// Type of a Python number, given the tensor that it meets.
DType scalar_dtype(nb::handle number, DType other);
bool is_number(nb::handle object);
/// 0-d tensor of a Python number.
T scalar_tensor(nb::handle number, DType dtype);
/// Tensor, or number that takes its type from `other`.
T operand(nb::handle object, DType other);
/// New tensor from numbers, nested sequences of them, or anything with DLPack or the buffer protocol; a copy.
T tensor_from(nb::handle source, std::optional<DType> dtype);
nb::object scalar_to_python(const Tensor& tensor);
nb::object list_of(const Tensor& tensor);

/// Tensor over the memory of a DLPack capsule's owner or a buffer, and the other way round.
T from_dlpack(nb::handle source, std::optional<bool> copy);
T from_buffer(nb::handle source);
nb::object to_dlpack(const T& tensor, nb::handle max_version, std::optional<bool> copy,
                     std::optional<int64_t> stream);

/// x[key], with all that Python and NumPy allow.
T get_item(const T& x, nb::handle key);
/// x[key] = value
void set_item(const T& x, nb::handle key, nb::handle value);

/// New reference to the Python object of a tensor, for slots of the type.
PyObject* wrapped(const T& tensor);
/// Sets the Python exception for the C++ exception that is being handled.
void set_python_error() noexcept;

void bind_tensor(nb::module_& module);
void bind_ops(nb::module_& module);
void bind_networks(nb::module_& module);
void bind_autograd(nb::module_& module);

}  // namespace accelera::tensora
