"""Python's part of the class Tensor: the array API's attributes, methods, conversions, pickling."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Iterator
from typing import Any

from accelera.errors import ArgumentError, StateError
from accelera.tensora import (
    autograd,
    dtypes,
    elementwise,
    manipulation,
    products,
    reductions,
    sort_search,
)
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.typing import Device, DTypeLike, Scalar

_UNPRINTED_DTYPES = {dtypes.float32, dtypes.bool}  # `repr` leaves these types out
MOST_ELEMENTS = 1000
"""`repr` shortens tensors with more elements: it prints the first and last three of each axis."""


def _values(x: Tensor) -> str:
    """Return the values as text: nested brackets with aligned columns."""
    import numpy as np

    near = x.detach().cpu()
    wide = native.cast(near, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else near
    return str(
        np.array2string(
            np.asarray(wide),
            separator=", ",
            prefix="tensor(",
            precision=4,
            threshold=MOST_ELEMENTS,
            suffix=")",
        )
    )


def _origin(x: Tensor) -> str | None:
    """Return how a tensor belongs to the autograd graph, as text; None if it needs no gradient."""
    if not x.requires_grad:
        return None
    return "requires_grad=True" if x.is_leaf else f"grad_fn={native.grad_fn(x)[0]}"


def represent(x: Tensor) -> str:
    """Return the text of `repr`: the values, then type, shape, device and autograd state where needed.

    The type is left out if it is float32 or bool, the shape if all values are printed, the device if it is
    the CPU, and the autograd state if the tensor requires no gradient.

    For example ``tensor([1., 2.], dtype=float64, requires_grad=True)``.
    """
    prints_shape = x.size > MOST_ELEMENTS or x.size == 0
    notes = [
        None if x.dtype in _UNPRINTED_DTYPES else f"dtype={x.dtype.name}",
        f"shape={tuple(x.shape)}" if prints_shape else None,
        None if x.device == "cpu" else f"device={x.device!r}",
        _origin(x),
    ]
    return f"tensor({', '.join([_values(x), *(each for each in notes if each)])})"


API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""Versions of the array API standard that may be asked for."""

Axes = int | tuple[int, ...] | None


# --- the array API ----------------------------------------------------------------------------------------


def array_namespace(_self: Tensor, /, *, api_version: str | None = None) -> Any:
    """Return the namespace of the array API, `accelera.tensora`.

    Raises
    ------
    ValueError
        If the version is none of `API_VERSIONS`.

    """
    if api_version not in (None, *API_VERSIONS):
        raise ArgumentError(
            f"[__array_namespace__] version {api_version!r}; give one of {', '.join(API_VERSIONS)}"
        )
    return sys.modules["accelera.tensora"]


def to_device(self: Tensor, device: Device, /, *, stream: Any = None) -> Tensor:
    """Return the tensor on a device; itself if it is there already.

    Raises
    ------
    ValueError
        If there is no such device, or a stream is given for the CPU, which has none.

    """
    if stream is None:
        return placed(self, device)
    from accelera.tensora import cuda

    if placed(self, device).device == "cpu" == self.device:
        raise ArgumentError("[to_device] a stream for the CPU, which has none")
    with cuda.stream(stream):
        return placed(self, device)


def on_cpu(self: Tensor) -> Tensor:
    """Return the tensor on the CPU; itself if it is there already."""
    return placed(self, "cpu")


def on_cuda(self: Tensor, device: int | None = None) -> Tensor:
    """Return the tensor on a CUDA device, by its number, the first by default."""
    return placed(self, f"cuda:{device or 0}")


def transposed(self: Tensor) -> Tensor:
    """View with the order of axes reversed."""
    return native.permute(self, tuple(reversed(range(self.ndim))))


def iterate(self: Tensor) -> Iterator[Any]:
    """Views of the slices along the first axis."""
    if self.ndim == 0:
        raise ArgumentError("[tensora] a 0-d tensor has nothing to iterate over; item() gives its number")
    return (self[i] for i in range(self.shape[0]))


def contains(self: Tensor, value: Scalar) -> bool:
    """Return whether any element equals the value."""
    return bool(native.any(native.equal(self, value)))


# --- conversions ------------------------------------------------------------------------------------------


def convert(
    self: Tensor, *args: Any, dtype: DTypeLike | None = None, device: Device | None = None, copy: bool = False
) -> Tensor:
    """Return the tensor with another element type, on another device, or both.

    Parameters
    ----------
    *args
        An element type (or its name), a device, or both in any order.
    dtype, device
        The same by name.
    copy
        Copy even if nothing changes.

    """
    for each in args:
        if isinstance(each, str) and each.split(":")[0] in ("cpu", "cuda"):
            device = each
        else:
            dtype = each
    wanted = self.dtype if dtype is None else dtypes.as_dtype(dtype)
    made = native.cast(placed(self, device), wanted)
    return native.copy(self) if copy and made is self else made


def to_numpy(self: Tensor) -> Any:
    """NumPy array over the same memory; bfloat16, which NumPy lacks, is copied to float32.

    Raises
    ------
    RuntimeError
        If the tensor requires gradients, which NumPy would not see.

    """
    if self.requires_grad:
        raise StateError(
            "[numpy] the tensor requires gradients, which NumPy would not see; use .detach().numpy()"
        )
    return to_array(self)


def to_array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """Return the tensor as a NumPy array: the method ``__array__``, which `numpy.asarray` calls.

    Raises
    ------
    RuntimeError
        If the tensor requires gradients and gradients are recorded: NumPy's result would have none.
    ValueError
        If ``copy=False``, but the type `dtype` needs a copy.

    """
    import numpy as np

    if self.requires_grad and native.grad_enabled():
        raise StateError(
            "[__array__] the tensor requires gradients, which NumPy's functions would drop. Use a function "
            "of accelera.tensora, or .detach() for the numbers alone."
        )

    source: Any = native.cast(self.detach(), dtypes.float32) if self.dtype == dtypes.bfloat16 else self
    found: Any = np.asarray(memoryview(source))
    if dtype is not None and found.dtype != dtype:
        if copy is False:
            raise ArgumentError(
                f"[__array__] {self.dtype} becomes {dtype} only in a copy; leave copy=False out"
            )
        return found.astype(dtype)
    return found.copy() if copy else found


# --- gradients --------------------------------------------------------------------------------------------


def set_requires_grad(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Set `requires_grad`, and return the tensor."""
    self.requires_grad = requires_grad
    return self


# --- pickling ---------------------------------------------------------------------------------------------


def _rebuild(
    data: Any, types: tuple[str, str], shape: tuple[int, ...], device: str, requires_grad: bool
) -> Tensor:
    """Return the tensor of a pickle; `_reduce_tensor` makes the arguments."""
    import numpy as np

    dtype, stored = types
    made = native.copy(native.from_buffer(np.frombuffer(data, stored).reshape(shape)))
    made = placed(native.cast(made, dtypes.as_dtype(dtype)), device)
    if requires_grad:
        made.requires_grad = True
    return made


def _reduce_tensor(x: Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return `_rebuild` and its arguments, as pickle needs them; the autograd graph is not pickled."""
    source = x.detach().cpu()
    dtype = stored = x.dtype.name
    if stored == "bfloat16":
        stored = "float32"
        source = native.cast(source, dtypes.float32)
    data = bytes(memoryview(native.contiguous(source)))
    return _rebuild, (data, (dtype, stored), tuple(x.shape), x.device, x.requires_grad)


def _reduce_function(function: Any) -> str:
    """Return the name by which pickle finds a C++ function in its module."""
    return str(function.__name__)


# --- methods ----------------------------------------------------------------------------------------------


def _reduction_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction as a method, with `axis` and `keepdims` by position as well."""

    def method(self: Tensor, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        return function(self, axis=axis, keepdims=keepdims, **options)

    return _copy_metadata(method, function)


def _native_reduction_method(name: str) -> Callable[..., Any]:
    """Return a reduction of the C++ extension as a method; extra options go through its Python function."""
    run, function = getattr(native, name), getattr(reductions, name)

    def method(self: Tensor, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        if options:
            return function(self, axis=axis, keepdims=keepdims, **options)
        return run(self, axis, keepdims)

    return _copy_metadata(method, function)


def _copy_metadata(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method the name and the docstring of the function that it calls; return the method."""
    method.__name__ = function.__name__
    method.__qualname__ = f"Tensor.{function.__name__}"
    method.__doc__ = function.__doc__
    return method


def _as_tuple(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the arguments of ``f(2, 3)`` or ``f((2, 3))`` as one tuple, here ``(2, 3)``."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _reshape(self: Tensor, *shape: Any) -> Tensor:
    """Elements in another shape: ``x.reshape(2, -1)`` or ``x.reshape((2, -1))``."""
    return native.reshape(self, _as_tuple(shape))


def _view(self: Tensor, *shape: Any) -> Tensor:
    """View in another shape; raises ValueError where the strides allow no view."""
    return manipulation.reshape(self, _as_tuple(shape), copy=False)


def _permute(self: Tensor, *axes: Any) -> Tensor:
    """View with the axes in another order."""
    return native.permute(self, _as_tuple(axes))


def _transpose(self: Tensor, *axes: Any) -> Tensor:
    """Exchange two axes, as PyTorch does. Without arguments reverse all axes, with all axes permute them."""
    given = _as_tuple(axes)
    if not given:
        return transposed(self)
    return manipulation.swapaxes(self, *given) if len(given) == 2 else native.permute(self, given)


def _expand(self: Tensor, *shape: Any) -> Tensor:
    """View in a larger shape; -1 leaves an extent as it is."""
    wanted = _as_tuple(shape)
    skip = len(wanted) - self.ndim
    return native.expand(
        self, tuple(self.shape[i - skip] if n == -1 and i >= skip else n for i, n in enumerate(wanted))
    )


def _squeeze(self: Tensor, axis: Axes = None) -> Tensor:
    """View without axes of extent 1."""
    return manipulation.squeeze(self, axis=axis)


def _unsqueeze(self: Tensor, axis: int) -> Tensor:
    """View with a new axis of extent 1."""
    return manipulation.expand_dims(self, axis=axis)


def _clone(self: Tensor) -> Tensor:
    """Copy that gradients flow back through."""
    return native.copy(self)


def _contiguous(self: Tensor) -> Tensor:
    """Return the tensor itself if its elements lie in order without gaps, otherwise a copy."""
    return native.contiguous(self)


def _fill(self: Tensor, value: Any) -> Tensor:
    """Set all elements to a number; return the tensor."""
    self[...] = value
    return self


def _zero(self: Tensor) -> Tensor:
    """Set all elements to zero; return the tensor."""
    return _fill(self, 0)


def _dim(self: Tensor) -> int:
    """Return the number of axes."""
    return int(self.ndim)


def _numel(self: Tensor) -> int:
    """Return the number of elements."""
    return int(self.size)


def _format(self: Tensor, spec: str) -> str:
    """Format the number of a 0-d tensor; a larger one is written as by `repr`."""
    return format(self.item(), spec) if self.ndim == 0 and spec else format(represent(self), spec)


def _dot(self: Tensor, other: Any) -> Tensor:
    """Matrix product."""
    return native.matmul(self, other)


def _astype(self: Tensor, dtype: DTypeLike, copy: bool = True) -> Tensor:
    """Elements as another type."""
    return elementwise.astype(self, dtype, copy=copy)


def _type_conversion(dtype: DType) -> Callable[[Any], Any]:
    def method(self: Tensor) -> Tensor:
        return native.cast(self, dtype)

    method.__doc__ = f"Elements as {dtype.name}."
    return method


def _axis_method(function: Callable[..., Any], default: int | None) -> Callable[..., Any]:
    """Return a function of one axis as a method, with the axis by position as well."""

    def method(self: Tensor, axis: Axes = default, **options: Any) -> Tensor:
        return function(self, axis=axis, **options)

    return _copy_metadata(method, function)


def _clamp(self: Tensor, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:  # noqa: A002
    """Limit each element to a range."""
    return elementwise.clip(self, min, max)


def _topk(self: Tensor, k: int, axis: int = -1, largest: bool = True) -> sort_search.Selected:
    """Return the `k` largest (or smallest) elements along an axis, and their indices."""
    return sort_search.topk(self, k, axis=axis, largest=largest)


_ELEMENTWISE = (
    "abs acos acosh add asin asinh atan atan2 atanh ceil conj cos cosh divide erf exp expm1 floor isfinite "
    "isinf isnan log log10 log1p log2 maximum minimum multiply negative pow reciprocal relu round rsqrt "
    "sigmoid sign sin sinh sqrt square subtract tan tanh trunc lerp"
)

_METHODS: dict[str, Any] = {
    "__array_namespace__": array_namespace,
    "__array__": to_array,
    "__iter__": iterate,
    "__contains__": contains,
    "__repr__": represent,
    "__str__": represent,
    "to_device": to_device,
    "cpu": on_cpu,
    "cuda": on_cuda,
    "to": convert,
    "numpy": to_numpy,
    "register_hook": autograd.register_hook,
    "register_post_accumulate_grad_hook": autograd.register_post_accumulate_grad_hook,
    "requires_grad_": set_requires_grad,
    "reshape": _reshape,
    "view": _view,
    "permute": _permute,
    "transpose": _transpose,
    "expand": _expand,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "flatten": manipulation.flatten,
    "swapaxes": manipulation.swapaxes,
    "clone": _clone,
    "copy": _clone,
    "contiguous": _contiguous,
    "fill_": _fill,
    "zero_": _zero,
    "dim": _dim,
    "numel": _numel,
    "__format__": _format,
    "__array_priority__": 1000.0,  # NumPy leaves its operators to the tensor
    "dot": _dot,
    "matmul": _dot,
    "astype": _astype,
    "float": _type_conversion(dtypes.float32),
    "double": _type_conversion(dtypes.float64),
    "half": _type_conversion(dtypes.float16),
    "int": _type_conversion(dtypes.int32),
    "long": _type_conversion(dtypes.int64),
    "bool": _type_conversion(dtypes.bool),
    "clip": _clamp,
    "clamp": _clamp,
    "topk": _topk,
    "argmax": _axis_method(sort_search.argmax, None),
    "argmin": _axis_method(sort_search.argmin, None),
    "argsort": _axis_method(sort_search.argsort, -1),
    "sort": _axis_method(sort_search.sort, -1),
    "cumsum": _axis_method(reductions.cumulative_sum, None),
    "cumprod": _axis_method(reductions.cumulative_prod, None),
    "nonzero": sort_search.nonzero,
    "repeat": manipulation.repeat,
    "tile": manipulation.tile,
}


_PROPERTIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "T": (transposed, "View with the order of axes reversed."),
    "mH": (
        lambda x: native.conj(products.matrix_transpose(x)),
        "View with each matrix transposed, conjugated if complex.",
    ),
    "mT": (products.matrix_transpose, "View with each matrix transposed."),
    "_grad_fn": (native.grad_fn, "Name of the operation and its inputs, or None."),
}


def equip() -> None:
    """Add the attributes and methods of this module to the class Tensor; register how to pickle it."""
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for name in _ELEMENTWISE.split():
        setattr(Tensor, name, getattr(elementwise, name))
    for name in ("sum", "prod", "max", "min", "any", "all"):
        setattr(Tensor, name, _native_reduction_method(name))
    for name in ("mean", "var", "std", "logsumexp"):
        setattr(Tensor, name, _reduction_method(getattr(reductions, name)))
    for name, (read, doc) in _PROPERTIES.items():
        setattr(Tensor, name, property(read, doc=doc))
    copyreg.pickle(Tensor, _reduce_tensor)
    copyreg.pickle(type(native.relu), _reduce_function)
