"""Element types: names, limits, and type promotion."""

from __future__ import annotations

import builtins
from typing import Any

from accelera.errors import ArgumentError, DTypeError
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.typing import DTypeLike

dtype = DType
"""The class of element types."""

bool = dtype.bool
uint8 = dtype.uint8
uint16 = dtype.uint16
uint32 = dtype.uint32
uint64 = dtype.uint64
int8 = dtype.int8
int16 = dtype.int16
int32 = dtype.int32
int64 = dtype.int64
float16 = dtype.float16
bfloat16 = dtype.bfloat16
float32 = dtype.float32
float64 = dtype.float64
complex64 = dtype.complex64
complex128 = dtype.complex128


def _repr(self: Any) -> str:
    return f"tensora.{self.name}"


setattr(dtype, "__repr__", _repr)  # noqa: B010
setattr(dtype, "__str__", _repr)  # noqa: B010

_SIGNED = frozenset({int8, int16, int32, int64})
_UNSIGNED = frozenset({uint8, uint16, uint32, uint64})
_FLOATING = frozenset({float16, bfloat16, float32, float64})
_COMPLEX = frozenset({complex64, complex128})
INTEGERS = _SIGNED | _UNSIGNED
INEXACT = _FLOATING | _COMPLEX
KINDS = {
    "bool": frozenset({bool}),
    "signed integer": _SIGNED,
    "unsigned integer": _UNSIGNED,
    "integral": INTEGERS,
    "real floating": _FLOATING,
    "complex floating": _COMPLEX,
    "numeric": INTEGERS | INEXACT,
}
"""The array API's kinds of element types."""


def as_dtype(source: DTypeLike) -> DType:
    """Element type from itself, its name, a NumPy type or a Python type.

    Raises
    ------
    TypeError
        If there is no such element type.

    """
    return source if isinstance(source, dtype) else native.to_dtype(source)


def default_dtype() -> DType:
    """Type of new floating-point tensors, and of fractional results of integers."""
    return native.default_float()


def set_default_dtype(source: DTypeLike) -> None:
    """Change `default_dtype` to another real floating-point type.

    Raises
    ------
    ValueError
        If it is no real floating-point type.

    """
    native.set_default_float(as_dtype(source))


def itemsize(source: DTypeLike) -> int:
    """Bytes of one element."""
    return int(native.itemsize(as_dtype(source)))


def real_dtype(source: DType) -> DType:
    """Type of the parts of a complex type; any other type itself."""
    return {complex64: float32, complex128: float64}.get(source, source)


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> builtins.bool:
    """Return whether an element type is of a kind.

    Parameters
    ----------
    dtype
        An element type.
    kind
        One of `KINDS` ("integral", "real floating" ...), an element type, or a tuple of both.

    Raises
    ------
    ValueError
        If there is no such kind.

    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ArgumentError(f"[isdtype] no kind {kind!r}; give one of {', '.join(map(repr, KINDS))}")
        return dtype in KINDS[kind]
    return as_dtype(dtype) == as_dtype(kind)


def _scalar_dtype(scalar: Any, tensor_dtype: Any) -> DType:
    """Return the type of a Python number in an operation with tensors of a type (None: no tensors)."""
    if isinstance(scalar, int):
        if scalar is True or scalar is False:
            return bool if tensor_dtype is None else tensor_dtype
        return tensor_dtype if tensor_dtype is not None and tensor_dtype != bool else int64
    floating = tensor_dtype if tensor_dtype in INEXACT else default_dtype()
    if isinstance(scalar, float) or floating in _COMPLEX:
        return floating
    return complex128 if floating == float64 else complex64


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Type that results from promoting the types of tensors, element types and Python numbers.

    A number takes the type of the tensors, unless that type cannot hold its kind. float16 and bfloat16
    promote to float32; an integer and a floating-point type to the floating-point type.

    Raises
    ------
    ValueError
        If nothing is given.

    """
    scalars = [each for each in arrays_and_dtypes if isinstance(each, (int, float, complex))]
    found = None
    for each in arrays_and_dtypes:
        if isinstance(each, (int, float, complex)):
            continue
        one = each.dtype if isinstance(each, Tensor) else as_dtype(each)
        found = one if found is None else native.promote(found, one)
    for scalar in scalars:
        one = _scalar_dtype(scalar, found)
        found = one if found is None else native.promote(found, one)
    if found is None:
        raise ArgumentError("[result_type] no tensor, element type or number given")
    return found


def can_cast(from_: Tensor | DTypeLike, to: DTypeLike, /) -> builtins.bool:
    """Return whether a type (or that of a tensor) is promoted to the type `to` when both are combined."""
    source = from_.dtype if isinstance(from_, Tensor) else as_dtype(from_)
    target = as_dtype(to)
    return native.promote(source, target) == target


class _TypeLimits:
    """Base of `finfo` and `iinfo`: the limits of a type as attributes, printed by `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        names: tuple[str, ...] = self.__slots__
        values = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__}({values})"


class finfo(_TypeLimits):  # noqa: N801 - the array API's name
    """Limits of a floating-point type; of a complex one, those of its parts.

    Raises
    ------
    TypeError
        If the type is another one.

    """

    __slots__ = ("bits", "dtype", "eps", "max", "min", "smallest_normal")

    def __init__(self, type: Any, /) -> None:  # noqa: A002
        found = real_dtype(type.dtype if isinstance(type, Tensor) else as_dtype(type))
        if found not in _FLOATING:
            raise DTypeError(f"[finfo] {found} is no floating-point type; iinfo() is for integers")
        digits, least = _FLOAT_PARTS[found]
        self.bits: int = 8 * itemsize(found)
        self.dtype: Any = found
        self.eps: float = 2.0**-digits
        self.max: float = (2 - self.eps) * 2.0 ** (1 - least)
        self.min: float = -self.max
        self.smallest_normal: float = 2.0**least


_FLOAT_PARTS = {float16: (10, -14), bfloat16: (7, -126), float32: (23, -126), float64: (52, -1022)}
"""Stored digits, and exponent of the smallest normal number."""


class iinfo(_TypeLimits):  # noqa: N801 - the array API's name
    """Limits of an integer type.

    Raises
    ------
    TypeError
        If the type is another one.

    """

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type: Any, /) -> None:  # noqa: A002
        found = type.dtype if isinstance(type, Tensor) else as_dtype(type)
        if found not in INTEGERS:
            raise DTypeError(f"[iinfo] {found} is no integer type; finfo() is for floating-point types")
        signed = found in _SIGNED
        self.bits: int = 8 * itemsize(found)
        self.dtype: Any = found
        self.max: int = 2 ** (self.bits - signed) - 1
        self.min: int = -(2 ** (self.bits - 1)) if signed else 0
