"""The CPU: tiles lie in host RAM, products run on SciPy's BLAS or, for integers, on our own kernel."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from accelera._native import igemm
from accelera.devices.blas import gemm, is_blas_dtype, is_blas_matrix
from accelera.devices.contract import Device, DeviceArray
from accelera.errors import DeviceMemoryError
from accelera.memory import host_memory
from accelera.units import format_bytes

_WORKSPACE_PER_THREAD = 8 << 20


class CpuDevice(Device):
    """The host's processor and memory."""

    name = "cpu"
    host_memory = True

    def total_bytes(self) -> int:
        return host_memory().total_bytes

    def available_bytes(self) -> int:
        return host_memory().available_bytes

    def allocate(self, nbytes: int) -> DeviceArray:
        try:
            pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise DeviceMemoryError(f"[cpu] the system refused {format_bytes(nbytes)}: {error}") from error
        return np.frombuffer(pages, np.uint8, nbytes)

    def release(self, buffer: DeviceArray) -> None:
        pages = buffer.base
        while not isinstance(pages, mmap.mmap):
            pages = getattr(pages, "base", None) or pages.obj
        pages.madvise(mmap.MADV_DONTNEED)

    def view(
        self, buffer: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> DeviceArray:
        count = int(np.prod(shape, dtype=np.int64))
        flat = buffer[: count * dtype.itemsize].view(dtype)
        return flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))

    def upload(self, host: np.ndarray[Any, Any], target: DeviceArray) -> None:
        np.copyto(target, host, casting="unsafe")

    def download(self, source: DeviceArray, host: np.ndarray[Any, Any]) -> None:
        np.copyto(host, source, casting="unsafe")

    def can_take(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether ``gemm`` uses ``array`` as it lies."""
        return array.dtype.kind in "iu" or (is_blas_dtype(array.dtype) and is_blas_matrix(array))

    def gemm(self, a: DeviceArray, b: DeviceArray, c: DeviceArray, *, accumulate: bool) -> None:
        if not c.size:
            return
        if not a.shape[-1]:
            if not accumulate:
                c[...] = 0
            return
        a = np.broadcast_to(a, c.shape[:-2] + a.shape[-2:])
        b = np.broadcast_to(b, c.shape[:-2] + b.shape[-2:])
        for index in np.ndindex(c.shape[:-2]):
            if c.dtype.kind in "iu":
                igemm(a[index], b[index], c[index], accumulate)
            else:
                gemm(a[index], b[index], c[index], accumulate=accumulate)

    def workspace_bytes(self) -> int:
        return _WORKSPACE_PER_THREAD * (os.cpu_count() or 1)

    def synchronize(self) -> None:
        """Nothing to wait for: products are done when they return."""
