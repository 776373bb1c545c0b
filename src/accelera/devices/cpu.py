"""The CPU as a device: tiles in host RAM, products by SciPy's BLAS and our integer kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np

from accelera._native import igemm_workspace_bytes
from accelera.devices import products
from accelera.devices.blas import blas
from accelera.devices.checks import (
    FLOATING,
    INTEGERS,
    check_cast,
    check_dtypes,
    check_gemm,
    check_gram,
    check_symmetrize,
    check_upload,
    check_view,
)
from accelera.devices.contract import Device
from accelera.devices.pages import Pages
from accelera.errors import DeviceMemoryError
from accelera.memory._internal import host_memory
from accelera.units import format_bytes

Array = np.ndarray[Any, Any]


@final
class CpuDevice(Device):
    """The processors this process may use, and the RAM it may use."""

    name = "cpu"
    host_memory = True

    def __init__(self) -> None:
        self._pages = Pages(self.name)
        self._blas = blas()

    def total_bytes(self) -> int:
        """Return the RAM, or the smallest control-group limit."""
        return host_memory().limit_bytes

    def available_bytes(self) -> int:
        """Return the RAM free to use without swapping and within every control group's limit."""
        return host_memory().available_bytes

    @property
    def allocated_bytes(self) -> int:
        """Sum of the buffers handed out and not released."""
        return self._pages.allocated_bytes

    def allocate(self, nbytes: int) -> Array:
        """Return a byte buffer in pages of its own; they are backed when first written.

        Raises DeviceMemoryError when more is asked for than is available now.
        """
        available = self.available_bytes()
        if nbytes > available:
            raise DeviceMemoryError(
                f"[allocate] {format_bytes(nbytes)} on cpu: {format_bytes(available)} are available; "
                f"work in smaller blocks, or free memory"
            )
        return self._pages.allocate(nbytes)

    def release(self, buffer: Array) -> None:
        """Return the buffer's pages to the system at once, even while views of it live."""
        self._pages.release(buffer)

    def view(
        self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> Array:
        """Return the start of ``buffer`` as a dense array."""
        return dense_view(buffer, shape, dtype, order)

    def upload(self, host: Array, target: Array) -> None:
        """Copy ``host`` into ``target``; strides are free, conversion may lose precision only."""
        copy(host, target, "upload")

    def download(self, source: Array, host: Array) -> None:
        """Copy ``source`` into ``host``; strides are free, conversion may lose precision only."""
        copy(source, host, "download")

    def gemm(self, a: Array, b: Array, c: Array, *, accumulate: bool, conjugate_a: bool = False) -> None:
        """``c (+)= a @ b``; see the contract."""
        check_gemm(a.shape, b.shape, c.shape)
        check_dtypes("gemm", a.dtype, b.dtype, c.dtype)
        products.gemm(a, b, c, accumulate=accumulate, conjugate_a=conjugate_a)

    def gram(self, a: Array, c: Array, *, accumulate: bool) -> None:
        """``c (+)= aᴴ @ a``, upper triangle; see the contract.

        Complex operands go at full speed when ``a`` and ``c`` lie in the same order; otherwise ``a`` is
        packed block by block.
        """
        check_gram(a.shape, c.shape)
        check_dtypes("gram", a.dtype, c.dtype)
        products.gram(a, c, accumulate=accumulate)

    def symmetrize(self, c: Array) -> None:
        """Complete a Gram matrix below its diagonal."""
        check_symmetrize(c.shape)
        products.symmetrize(c)

    def can_take(self, array: Array) -> bool:
        """Return whether products read ``array`` without packing.

        BLAS needs one of the last two axes dense and the other at least that far apart; integers need
        only whole elements between neighbours.
        """
        known = array.dtype in FLOATING or array.dtype in INTEGERS
        return known and products.is_takeable(array if array.ndim > 1 else array.reshape(-1, 1))

    def workspace_bytes(self) -> int:
        """Return a bound of the packing memory of the BLAS library and the integer kernel."""
        return max(self._blas.workspace_bytes(), igemm_workspace_bytes(8, self._blas.threads.most))

    def packing_bytes(self) -> int:
        """Return the bytes for packed blocks of operands that ``can_take`` rejects."""
        return products.PACKING_BYTES

    @property
    def threads(self) -> int:
        """Threads a product runs on: affinity, CPU quota and ``limit_threads`` considered."""
        return self._blas.threads.count

    def limit_threads(self, count: int) -> AbstractContextManager[None]:
        """Return a context in which products run on at most ``count`` threads (in the whole process)."""
        return self._blas.threads.limited(count)

    def synchronize(self) -> None:
        """Return at once: every call above is done when it returns."""


def dense_view(buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]) -> Array:
    """Return the start of a byte buffer as an array whose axes lie in ``order``, slowest first."""
    check_view(shape, dtype, order, buffer.nbytes)
    lying = tuple(shape[axis] for axis in order)
    dense: Array = np.ndarray(lying, dtype, buffer).transpose(np.argsort(order))
    return dense


def copy(source: Array, target: Array, op: str) -> None:
    """Copy between arrays of one shape, converting element by element; no temporary of their size."""
    check_upload(source.shape, target.shape, op)
    check_cast(op, source.dtype, target.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, source, casting="unsafe")
