"""Element types a store can hold, and the dtypes they are called by."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from accelera.errors import DTypeError

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

_INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
_NAMES = ("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128")

_OPAQUE = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def parse_dtype(dtype: Any, *, op: str = "dtype") -> np.dtype[Any]:
    """Return the NumPy dtype, in native byte order, that ``dtype`` stands for.

    Takes NumPy dtypes and their names, ``"bfloat16"``, and torch dtypes (by their printed name).
    Raises DTypeError for everything a store cannot hold: objects, strings, records, dates, long
    doubles, float8 and sub-byte types.

    >>> parse_dtype("bfloat16").itemsize
    2
    >>> parse_dtype(">f4")
    dtype('float32')
    """
    try:
        name = _canonical(dtype)
    except (TypeError, ValueError, SyntaxError, LookupError, RecursionError, DeprecationWarning):
        name = str(dtype)
    if name not in _NAMES:
        raise DTypeError(
            f"[{op}] elements of type {name!r}: a store holds {', '.join(_NAMES)}; "
            "convert the data to one of them"
        )
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def _canonical(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name == "bfloat16":
        return name
    element: np.dtype[Any] = np.dtype(name if str(dtype) != name else dtype)
    return str(element.name)


def as_bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of ``array`` whose dtype has the same width and exports a buffer (bfloat16 does not)."""
    return array.view(_OPAQUE[array.dtype.itemsize])
