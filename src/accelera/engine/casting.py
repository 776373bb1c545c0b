"""Values from one element type to another, each rounded once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

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
    """Whether converting through float32 would round twice."""
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
