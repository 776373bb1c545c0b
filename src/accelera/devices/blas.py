"""The matrix product of SciPy's BLAS, accumulating in place and without copies.

``scipy.linalg.cython_blas`` exports the address of each routine; called through it with the GIL
released, ``C += A @ B`` costs no more than ``C = A @ B`` (measured with OpenBLAS), which
accumulating over slabs of k needs. BLAS counts columns first, so a row-major C is computed as
``Cᵀ = Bᵀ Aᵀ``; transposed operands become flags.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_INT_MAX = 2**31 - 1

Matrix = np.ndarray[Any, Any]


@cache
def _address(routine: str) -> int:
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__[routine]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get_pointer(capsule, get_name(capsule))
    return address


@cache
def _gemm(letter: str) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(_address(letter + "gemm"))


def is_blas_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether BLAS multiplies ``dtype``: f32 f64 c64 c128."""
    return dtype.name in _LETTERS


def is_blas_matrix(array: Matrix) -> bool:
    """Return whether the last two axes lie as BLAS wants them: one dense, the other a leading dimension."""
    return _leading(array) is not None or _leading(array.swapaxes(-1, -2)) is not None


def _leading(array: Matrix) -> int | None:
    """Return the leading dimension of a matrix whose columns are dense, or None."""
    rows, cols = array.shape[-2:]
    item = array.itemsize
    down, across = array.strides[-2:]
    if rows > 1 and down != item:
        return None
    if cols <= 1:
        return max(rows, 1)
    step, rest = divmod(across, item)
    return step if rest == 0 and step >= max(rows, 1) and step <= _INT_MAX else None


def gemm(a: Matrix, b: Matrix, c: Matrix, *, accumulate: bool) -> None:
    """Compute ``c = a @ b`` or ``c += a @ b`` for 2-D arrays of one BLAS dtype, none copied."""
    if _leading(c) is None:
        a, b, c = b.T, a.T, c.T
    letter = _LETTERS[c.dtype.name]
    flag_a, lead_a = _flagged(a)
    flag_b, lead_b = _flagged(b)
    sizes = [ctypes.c_int(value) for value in (c.shape[0], c.shape[1], a.shape[1], lead_a, lead_b)]
    lead_c = ctypes.c_int(_leading(c) or 1)
    one = np.ones(1, c.dtype)
    beta = np.full(1, accumulate, c.dtype)
    m, n, k, lda, ldb = (ctypes.byref(value) for value in sizes)
    _gemm(letter)(
        flag_a, flag_b, m, n, k, one.ctypes.data, a.ctypes.data, lda, b.ctypes.data, ldb,
        beta.ctypes.data, c.ctypes.data, ctypes.byref(lead_c),
    )  # fmt: skip


def _flagged(array: Matrix) -> tuple[bytes, int]:
    """Return (transposition flag, leading dimension)."""
    leading = _leading(array)
    if leading is not None:
        return b"N", leading
    leading = _leading(array.T)
    assert leading is not None
    return b"T", leading
