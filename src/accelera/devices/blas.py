"""General and Hermitian products through the BLAS that SciPy is linked with.

The functions are called by address, so that the GIL is free while they run and nothing is copied
on the way. The library packs the right factor of each call into memory of its own, in proportion
to its columns: calls on wide results are therefore cut into ``SPAN_BYTES`` wide ones, which bounds
that memory (``workspace_bytes``) at no measurable cost.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.devices.pages import address
from accelera.devices.threads import BlasThreads

SPAN_BYTES = 16 << 10
"""Widest row, in bytes, of the right factor that one call is given."""

_PANEL_BYTES = 12 << 20
"""What a library packs of the right factor at once: at most 768 rows of ``SPAN_BYTES``."""
_PER_THREAD_BYTES = 2 << 20
"""Bytes for packed rows of the left factor and the library's own records."""

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_PLAIN, _TURNED, _ADJOINT = b"N", b"T", b"C"


class Blas:
    """The four element types' routines, and the library's threads."""

    def __init__(self) -> None:
        from scipy.linalg import cython_blas

        table: dict[str, object] = cython_blas.__pyx_capi__
        self.threads = BlasThreads(ctypes.CDLL(cython_blas.__file__))
        self._routines = {
            np.dtype(name): _Routines(table, letter, np.dtype(name)) for name, letter in _LETTERS.items()
        }

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Return whether there are routines for ``dtype``."""
        return dtype in self._routines

    def workspace_bytes(self) -> int:
        """Return the most that the library keeps for one calling thread, whatever it is given.

        Measured over all four types one after the other: 9 MiB on 2 threads with AVX2 or AVX-512
        kernels, 15 MiB with the hungriest (Sandy Bridge), 1.1 to 2.1 MiB for each further thread.
        """
        return _PANEL_BYTES + self.threads.most * _PER_THREAD_BYTES

    def gemm(self, a: Array, b: Array, c: Array, *, accumulate: bool, conjugate_a: bool = False) -> bool:
        """Compute ``c (+)= a @ b``; return False, with nothing done, when BLAS cannot say it."""
        routines = self._routines[c.dtype]
        conjugate_a = conjugate_a and c.dtype.kind == "c"
        if column_stride(c):
            return routines.gemm(a, b, c, accumulate, (conjugate_a, False))
        return routines.gemm(b.T, a.T, c.T, accumulate, (False, conjugate_a))

    def herk(self, a: Array, c: Array, *, accumulate: bool) -> bool:
        """Compute the upper triangle of ``c (+)= aᴴ @ a``; return False when BLAS cannot say it."""
        return self._routines[c.dtype].herk(a, c, accumulate)


@functools.cache
def blas() -> Blas:
    """Return the process's one; the first call loads SciPy's library."""
    return Blas()


class _Routines:
    """gemm and syrk (real) or herk (complex) of one element type, in column-major terms."""

    def __init__(self, table: dict[str, object], letter: str, dtype: np.dtype[Any]) -> None:
        self._gemm = _routine(table, f"{letter}gemm", 13)
        self._herk = _routine(table, f"{letter}{'herk' if dtype.kind == 'c' else 'syrk'}", 10)
        self._span = SPAN_BYTES // dtype.itemsize
        self._one, self._zero = _scalar(dtype, 1), _scalar(dtype, 0)
        self._complex = dtype.kind == "c"

    def gemm(self, a: Array, b: Array, c: Array, accumulate: bool, conjugate: tuple[bool, bool]) -> bool:
        """Compute column-major ``c`` a span of columns at a time."""
        first, second = _operand(a, conjugate[0]), _operand(b, conjugate[1])
        stride = column_stride(c)
        if first is None or second is None or not stride:
            return False
        columns = c.shape[1]
        for start in range(0, columns, self._span):
            width = min(self._span, columns - start)
            self._call(first, second, (a, b, c), stride, accumulate, start, width)
        return True

    def _call(
        self,
        first: tuple[bytes, int],
        second: tuple[bytes, int],
        arrays: tuple[Array, Array, Array],
        stride: int,
        accumulate: bool,
        start: int,
        width: int,
    ) -> None:
        a, b, c = arrays
        self._gemm(
            first[0],
            second[0],
            _int(c.shape[0]),
            _int(width),
            _int(a.shape[1]),
            self._one,
            address(a),
            _int(first[1]),
            address(b) + start * b.strides[1],
            _int(second[1]),
            self._one if accumulate else self._zero,
            address(c) + start * c.strides[1],
            _int(stride),
        )

    def herk(self, a: Array, c: Array, accumulate: bool) -> bool:
        """Compute the triangle of ``c`` that is the upper one as the caller sees it.

        For a row-major ``c`` the library sees its transpose, ``aᵀ conj(a)``, and fills the lower part.
        """
        turned = not column_stride(c)
        stride = column_stride(c.T if turned else c)
        operand = _operand(a.T if turned else a, conjugate=False)
        if operand is None or not stride or (self._complex and operand[0] != _PLAIN):
            return False
        outer = turned == (operand[0] == _PLAIN)
        form = _PLAIN if outer else _ADJOINT if self._complex else _TURNED
        depth, columns = a.shape
        self._herk(
            b"L" if turned else b"U",
            form,
            _int(columns),
            _int(depth),
            self._one,
            address(a),
            _int(operand[1]),
            self._one if accumulate else self._zero,
            address(c),
            _int(stride),
        )
        return True


def _operand(x: Array, conjugate: bool) -> tuple[bytes, int] | None:
    """Return (form, leading dimension) in which BLAS reads ``x``; None when it cannot."""
    stride = column_stride(x)
    if stride and not conjugate:
        return _PLAIN, stride
    stride = column_stride(x.T)
    if stride:
        return (_ADJOINT if conjugate else _TURNED), stride
    return None


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def _scalar(dtype: np.dtype[Any], value: int) -> Any:
    """Return ``value`` (0 or 1) as the library reads it; a complex one is followed by its imaginary part."""
    real = ctypes.c_float if dtype.itemsize // (2 if dtype.kind == "c" else 1) == 4 else ctypes.c_double
    return (real * 2)(value, 0)


def _routine(table: dict[str, object], name: str, arguments: int) -> Callable[..., None]:
    """Return the routine as a C function that releases the GIL; every argument is an address."""
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    capsule = table[name]
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)
    return prototype(address_of(capsule, name_of(capsule)))


MOST_ELEMENTS = 2**31 - 1
"""BLAS counts rows, columns and leading dimensions in 32-bit integers."""

Array = np.ndarray[Any, np.dtype[Any]]


def column_stride(x: Array) -> int:
    """Return the leading dimension of ``x`` as a column-major matrix; 0 when it is not one.

    >>> x = np.zeros((6, 4), order="F")
    >>> column_stride(x), column_stride(x[1:4, ::2]), column_stride(x.T)
    (6, 12, 0)
    """
    rows: int
    rows, columns = x.shape
    down, along = x.strides
    item = x.itemsize
    if down != item and rows > 1:
        return 0
    if columns <= 1:
        return max(1, rows)
    stride, rest = int(along // item), along % item
    return stride if rest == 0 and max(1, rows) <= stride <= MOST_ELEMENTS else 0


def is_plain(x: Array) -> bool:
    """Return whether BLAS can read the two-dimensional ``x`` as it lies, in one order or the other."""
    return x.flags.aligned and (column_stride(x) > 0 or column_stride(x.T) > 0)
