#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "tensora/core/autograd.h"

namespace nb = nanobind;

namespace nanobind::detail {

/// Caster of an argument for which anything is taken, in the end: using what does not fit throws an error
/// that says what is needed and what was found. (An error in `from_python` itself would end the process.)
template <typename Argument>
struct ArgumentCaster {
    using Value = Argument;
    template <typename Type>
    using Cast = movable_cast_t<Type>;
    template <typename Type>
    bool can_cast() const {
        return misfit == nullptr;
    }
    explicit operator Value*() { return &checked(); }
    explicit operator Value&() { return checked(); }
    explicit operator Value&&() { return std::move(checked()); }

    Value value;

  protected:
    /// `is_last`: no other overload will be asked.
    bool take_misfit(handle source, bool is_last) {
        if (is_last) misfit = source.ptr();
        return is_last;
    }

  private:
    PyObject* misfit = nullptr;

    Value& checked();
};

/// Ref<Tensor> as the Python object of its tensor.
template <typename Object>
struct type_caster<accelera::tensora::Ref<Object>> : ArgumentCaster<accelera::tensora::Ref<Object>> {
    using Caster = make_caster<Object>;
    static constexpr auto Name = Caster::Name;
    static constexpr bool IsClass = true;

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        Caster caster;
        if (!caster.from_python(source, flags, cleanup))
            return this->take_misfit(source, flags & uint32_t(cast_flags::convert));
        this->value = accelera::tensora::Ref<Object>(caster.operator Object*());
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
struct type_caster<accelera::tensora::Dims> : ArgumentCaster<accelera::tensora::Dims> {
    static constexpr auto Name = const_name("tuple[int, ...]");

    bool from_python(handle source, uint32_t flags, cleanup_list*) noexcept;
    static handle from_cpp(const accelera::tensora::Dims& dims, rv_policy, cleanup_list*) noexcept;

  private:
    bool read(PyObject* object);
};

/// One of both, or None.
template <typename Inner>
struct OptionalArgumentCaster : ArgumentCaster<std::optional<Inner>> {
    using Caster = make_caster<Inner>;
    static constexpr auto Name = optional_name(Caster::Name);

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        if (source.is_none()) return true;
        Caster caster;
        if (!caster.from_python(source, flags, cleanup) || !caster.template can_cast<Inner>())
            return this->take_misfit(source, flags & uint32_t(cast_flags::convert));
        this->value = caster.operator Inner&&();
        return true;
    }
    static handle from_cpp(const std::optional<Inner>& value, rv_policy policy,
                           cleanup_list* cleanup) noexcept {
        return value ? Caster::from_cpp(*value, policy, cleanup) : none().release();
    }
};

template <>
struct type_caster<std::optional<accelera::tensora::Dims>> : OptionalArgumentCaster<accelera::tensora::Dims> {
};
template <>
struct type_caster<std::optional<accelera::tensora::T>> : OptionalArgumentCaster<accelera::tensora::T> {};

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
/// Raise if the program asks for a tensor that is larger than the budget of its step.
void require_fit(const Dims& shape, DType dtype, Device device);
/// Fails for an argument that is no Tensor, or no Dims.
[[noreturn]] void refuse_argument(nb::handle found, bool for_dims);
/// Sets the Python exception for the C++ exception that is being handled.
void set_python_error() noexcept;

void bind_tensor(nb::module_& module);
void bind_ops(nb::module_& module);
void bind_networks(nb::module_& module);
void bind_autograd(nb::module_& module);
void bind_budget(nb::module_& module);
void bind_jit(nb::module_& module);
void bind_state_guard(nb::module_& module);
void bind_autocast(nb::module_& module);

}  // namespace accelera::tensora

template <typename Argument>
Argument& nanobind::detail::ArgumentCaster<Argument>::checked() {
    using namespace accelera::tensora;
    if (misfit)
        refuse_argument(misfit,
                        std::is_same_v<Argument, Dims> || std::is_same_v<Argument, std::optional<Dims>>);
    return value;
}
