"""Element types: which one an operation gives and in which it is computed, and values converted between them.

NumPy's rules decide (a Python number takes the type of what it meets), with one addition for the
half types: they are computed in float32 and rounded once, where the result is stored. A half with an
integer stays that half; two different halves make float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from accelera.errors import DTypeError
from accelera.stores._internal import parse_dtype

DType = np.dtype[Any]
Type = DType | type
"""An element type, or ``int``, ``float``, ``complex`` for a Python number."""

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
HALVES = frozenset((FLOAT16, np.dtype(ml_dtypes.bfloat16)))


@dataclass(frozen=True)
class TypeSignature:
    """The types of one operation."""

    inputs: tuple[DType, ...]
    """What each argument is converted to before."""
    held: DType
    """What comes out of the arithmetic."""
    dtype: DType
    """What it stands for: differs from ``held`` for halves."""


def held_dtype(dtype: DType) -> DType:
    """Return the type in which values of ``dtype`` are held, computed and summed: float32 for halves."""
    return FLOAT32 if dtype in HALVES else dtype


def real_type(dtype: DType) -> DType:
    """Return the type of the real part of ``dtype``."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def resolve(ufunc: np.ufunc, types: Sequence[Type]) -> TypeSignature:
    """Return the types of ``ufunc`` applied to arguments of ``types``.

    Raises DTypeError when NumPy knows no such operation, or its result cannot be stored.
    """
    half = _common_half(types)
    found = _loop(ufunc, [_widened(each, half is not None) for each in types], types)
    if FLOAT16 in found:
        half = half or FLOAT16
        found = _loop(ufunc, [_widened(each, True) for each in types], types)
    *inputs, held = found
    dtype = half if half is not None and held == FLOAT32 else held
    return TypeSignature(tuple(inputs), held, parse_dtype(dtype, op=ufunc.__name__))


def common_type(op: str, types: Sequence[Type]) -> TypeSignature:
    """Return the types of a choice among arguments of ``types``; raises DTypeError."""
    half = _common_half(types)
    plain = [_widened(each, half is not None) for each in types]
    try:
        held = np.result_type(*[each if isinstance(each, np.dtype) else each(0) for each in plain])
    except TypeError as error:
        raise DTypeError(f"[{op}] {_names(types)} have no common type; convert one with astype") from error
    dtype = half if half is not None and held == FLOAT32 else held
    return TypeSignature((held,) * len(types), held, dtype)


def product_type(a: DType, b: DType) -> DType:
    """Return the type of a product of matrices of types ``a`` and ``b``.

    Raises DTypeError for truth values, and where there is no common type.
    """
    found = common_type("matmul", [a, b]).dtype
    if found.kind == "b":
        raise DTypeError(f"[matmul] {a} cannot be multiplied; use a float, complex or integer type")
    return found


def check_conversion(op: str, source: DType, target: DType) -> None:
    """Raise DTypeError when converting would drop an imaginary part."""
    if source.kind == "c" and target.kind not in "cb":
        raise DTypeError(f"[{op}] {source} to {target} drops the imaginary part; take .real first")


def check_lossless(op: str, source: DType, target: DType) -> None:
    """Raise DTypeError when converting loses more than precision: a fraction, an imaginary part, a sign."""
    if _rank(source) > _rank(target):
        raise DTypeError(
            f"[{op}] {source} to {target} loses more than precision; say so with "
            f"engine.evaluate(engine.array(x).astype({str(target)!r}), out=...)"
        )


def _common_half(types: Sequence[Type]) -> DType | None:
    """Return the half (float32 for two kinds) that the result has; None when a wider type decides."""
    halves = {each for each in types if isinstance(each, np.dtype) and each in HALVES}
    wider = any(isinstance(each, np.dtype) and each.kind in "fc" and each not in HALVES for each in types)
    if not halves or wider:
        return None
    return halves.pop() if len(halves) == 1 else FLOAT32


def _widened(each: Type, beside_half: bool) -> Type:
    if not isinstance(each, np.dtype):
        return each
    if each in HALVES:
        return FLOAT32
    return FLOAT32 if beside_half and each.kind in "biu" else each


def _loop(ufunc: np.ufunc, plain: Sequence[Type], types: Sequence[Type]) -> tuple[DType, ...]:
    resolver: Any = ufunc
    try:
        found: tuple[DType, ...] = resolver.resolve_dtypes((*plain, None))
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"[{ufunc.__name__}] of {_names(types)}: {error}; convert with astype first"
        ) from error
    return found


def _rank(dtype: DType) -> int:
    """Return 0 for truth values, 1 for integers, 2 for reals, 3 for complex numbers."""
    return {"b": 0, "i": 1, "u": 1, "c": 3}.get(dtype.kind, 2)


def _names(types: Sequence[Type]) -> str:
    return ", ".join(str(each) if isinstance(each, np.dtype) else each.__name__ for each in types)


Array = np.ndarray[Any, np.dtype[Any]]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_ODD_ITEMSIZE = 32


def cast_itemsize(source: np.dtype[Any], target: np.dtype[Any]) -> int:
    """Return the bytes per element that ``cast_into`` takes besides both arrays, at most."""
    return _ODD_ITEMSIZE if _needs_care(source, target) else 0


def cast_into(source: Array, target: Array) -> None:
    """Copy ``source`` into ``target`` of the same shape, rounding to the nearest, ties to even.

    What a narrower real type cannot hold becomes infinite; integers are cut off and wrap around.
    """
    if source.dtype == target.dtype:
        np.copyto(_as_words(target), _as_words(source))
    elif _needs_care(source.dtype, target.dtype):
        np.copyto(target, _rounded_to_odd(source), casting="unsafe")
    else:
        np.copyto(target, source, casting="unsafe")


def _needs_care(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether converting through float32 would round twice."""
    return target == _BFLOAT16 and source.itemsize > 2 and source != np.float32


def _as_words(array: Array) -> Array:
    """Return bfloat16 numbers as integers, which NumPy copies quicker; other arrays as they are."""
    return array.view(np.uint16) if array.dtype == _BFLOAT16 else array


def _rounded_to_odd(source: Array) -> Array:
    """Return float32 numbers that a second rounding, to bfloat16, takes to where one rounding would.

    What does not fit is cut off and its last bit set, so that no tie appears that was none
    (Boldo, Melquiond 2008).
    """
    exact = source.astype(np.float64)
    near = exact.astype(np.float32)
    bits = near.view(np.int32)
    bits -= np.abs(near) > np.abs(exact)
    bits |= near != exact
    return near
