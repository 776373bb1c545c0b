"""Any accelerator that torch knows (CUDA, ROCm, XPU, MPS) as a device.

Uploads and downloads go piece by piece through a few pinned host buffers, on urgent streams of their
own; conversion and reordering happen on the device. Events between the streams make each piece of work
wait for the buffers it touches, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch

from accelera import _native
from accelera.devices import torch_products
from accelera.devices.checks import (
    HALVES,
    INTEGERS,
    check_cast,
    check_dtypes,
    check_gemm,
    check_gram,
    check_halves,
    check_symmetrize,
    check_upload,
    check_view,
)
from accelera.devices.contract import Device
from accelera.devices.torch_staging import PIECE_BYTES, Staging
from accelera.devices.torch_streams import Lanes
from accelera.devices.torch_types import is_held, numpy_dtype, signed, torch_dtype, translated, wire_dtype
from accelera.errors import DeviceError, DTypeError
from accelera.memory._internal import host_memory
from accelera.units import format_bytes


@final
class TorchDevice(Device):
    """One accelerator, by torch's name for it; ``"cpu"`` runs the same code without streams.

    Memory is torch's: its caching allocator rounds large buffers up to 2 MiB and keeps what is released
    until ``empty_cache``.
    """

    host_memory = False
    lent_bytes = PIECE_BYTES

    def __init__(self, name: str) -> None:
        with translated("device"):
            self._device = torch.device(name)
            self._lanes = Lanes(self._device)
            self._staging = Staging(self._device, self._lanes)
            self._library_bytes = torch_products.library_bytes(self._device)
        self.name = "torch-cpu" if self._device.type == "cpu" else str(self._device)
        self._buffers: dict[int, int] = {}
        self._halves: dict[np.dtype[Any], bool] = {}

    def total_bytes(self) -> int:
        """Return the size of the accelerator's memory, or the host's for ``"cpu"``."""
        return self._memory()[1]

    def available_bytes(self) -> int:
        """Return the free memory, torch's cache included, less what transfers and products will take."""
        return max(0, self._memory()[0] - self.workspace_bytes())

    @property
    def allocated_bytes(self) -> int:
        """Sum of the buffers handed out and not released."""
        return sum(list(self._buffers.values()))

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return a byte tensor; raises DeviceMemoryError when torch has no room for it."""
        with translated("allocate", f"{format_bytes(nbytes)} on {self.name}"):
            buffer = torch.empty(max(nbytes, 1), dtype=torch.uint8, device=self._device)[:nbytes]
            self._lanes.born(buffer)
        self._buffers[self._lanes.key(buffer)] = nbytes
        return buffer

    def release(self, buffer: torch.Tensor) -> None:
        """Wait for the work on the buffer and drop it; its memory goes with the last view."""
        key = self._lanes.key(buffer)
        if self._buffers.pop(key, None) is None:
            raise DeviceError(
                f"[release] a buffer of {format_bytes(buffer.nbytes)} was never allocated on {self.name}, or "
                f"was released before; release each buffer of allocate() once"
            )
        with translated("release"):
            self._lanes.forget(key)

    def view(
        self, buffer: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> torch.Tensor:
        """Return the start of ``buffer`` as a dense tensor; bfloat16 is ml_dtypes' in NumPy."""
        check_view(shape, dtype, order, buffer.nbytes)
        typed = torch_dtype(dtype, self._device)
        ordered_shape = [shape[axis] for axis in order]
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return buffer[:count].view(typed).view(ordered_shape).permute(*np.argsort(order).tolist())

    def upload(self, host: np.ndarray[Any, Any], target: torch.Tensor) -> None:
        """Queue the copy on the upload stream; on return ``host`` is copied to pinned memory."""
        check_upload(host.shape, tuple(target.shape), "upload")
        check_cast("upload", host.dtype, numpy_dtype(target.dtype))
        with translated("upload", f"{format_bytes(host.nbytes)} to {self.name}"):
            self._staging.upload(host, target)

    def download(self, source: torch.Tensor, host: np.ndarray[Any, Any]) -> None:
        """Copy after the work that writes ``source``, and wait for the data."""
        check_upload(tuple(source.shape), host.shape, "download")
        check_cast("download", numpy_dtype(source.dtype), host.dtype)
        with translated("download", f"{format_bytes(host.nbytes)} from {self.name}"):
            self._staging.download(source, host)

    def lends(self, host: np.dtype[Any], held: np.dtype[Any]) -> bool:
        """Return whether elements are transferred in the host's type."""
        return wire_dtype(host, torch_dtype(held, self._device), self._device) == host

    def lend_host(self, *, wait: bool = True) -> np.ndarray[Any, Any] | None:
        """Return one of the transfers' buffers: pinned memory of 4 MiB."""
        with translated("lend_host", f"on {self.name}"):
            return self._staging.lend(wait=wait)

    def take_back(self, memory: np.ndarray[Any, Any]) -> None:
        """Take a buffer back; it is lent again once its upload is done."""
        self._staging.take_back(memory)

    def begin_download(self, source: torch.Tensor, host: np.ndarray[Any, Any]) -> Callable[[], None]:
        """Begin an asynchronous copy into lent memory; return a function that waits for the data."""
        check_upload(tuple(source.shape), host.shape, "download")
        check_cast("download", numpy_dtype(source.dtype), host.dtype)
        with translated("download", f"{format_bytes(host.nbytes)} from {self.name}"):
            arrived = self._staging.begin_download(source, host)

        def wait() -> None:
            with translated("download", f"{format_bytes(host.nbytes)} from {self.name}"):
                arrived()

        return wait

    def transfer(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy bytes between host memory and a buffer on a copy stream, and wait for them.

        There is no staging: from and to pinned host memory it is as fast as the bus.
        """
        up = target.device.type == self._device.type
        stream = self._lanes.up if up else self._lanes.down
        reads, writes = ((), (target,)) if up else ((source,), ())
        with translated("transfer", f"{format_bytes(source.nbytes)} to or from {self.name}"):
            with self._lanes.working(stream, reads, writes) as event:
                target.copy_(source, non_blocking=self._lanes.asynchronous)
            if event is not None:
                event.synchronize()

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy within the device on a copy stream, and wait for it."""
        check_upload(tuple(source.shape), tuple(target.shape), "copy")
        check_cast("copy", numpy_dtype(source.dtype), numpy_dtype(target.dtype))
        up = self._lanes.key(target) in self._buffers
        stream = self._lanes.up if up else self._lanes.down
        reads, writes = ((), (target,)) if up else ((source,), ())
        with translated("copy", f"{format_bytes(target.nbytes)} on {self.name}"):
            with self._lanes.working(stream, reads, writes) as event:
                if source.dtype == target.dtype:
                    source, target = signed(source), signed(target)
                target.copy_(source)
            if event is not None:
                event.synchronize()

    def admit(self, *buffers: torch.Tensor) -> None:
        """Let later work on the current stream wait for transfers of these buffers."""
        self._lanes.admit(buffers)

    def used(self, *buffers: torch.Tensor) -> None:
        """Let transfers of these buffers wait for the present work on the current stream."""
        self._lanes.used(buffers)

    def gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        *,
        accumulate: bool,
        conjugate_a: bool = False,
    ) -> None:
        """``c (+)= a @ b`` on the current stream, once what a, b and c wait for is done."""
        check_gemm(a.shape, b.shape, c.shape)
        self._check_dtypes("gemm", a, b, c)
        with translated("gemm", f"on {self.name}"), self._lanes.computing(reads=(a, b), writes=(c,)):
            torch_products.gemm(a, b, c, accumulate=accumulate, conjugate_a=conjugate_a)

    def gram(self, a: torch.Tensor, c: torch.Tensor, *, accumulate: bool) -> None:
        """``c (+)= aᴴ @ a``, upper triangle, in strips: little more than half the flops."""
        check_gram(a.shape, c.shape)
        self._check_dtypes("gram", a, c)
        with translated("gram", f"on {self.name}"), self._lanes.computing(reads=(a,), writes=(c,)):
            torch_products.gram(a, c, accumulate=accumulate)

    def symmetrize(self, c: torch.Tensor) -> None:
        """Complete a Gram matrix, block by block."""
        check_symmetrize(c.shape)
        with translated("symmetrize", f"on {self.name}"), self._lanes.computing(reads=(), writes=(c,)):
            torch_products.symmetrize(c)

    def multiplies(self, dtype: np.dtype[Any]) -> bool:
        """Return whether torch has a product of such elements there, or we have one for integers.

        Of half types: whether torch sums them in float32, which takes CUDA and torch 2.8; it is tried once.
        """
        if dtype in INTEGERS:
            return _multiplies_integers(self._device.type)
        if dtype in HALVES:
            return self._sums_halves(dtype)
        return super().multiplies(dtype) and is_held(dtype, self._device)

    def can_take(self, array: torch.Tensor) -> bool:
        """Return whether one of the last two axes is dense and the other at least that far apart."""
        return array.ndim < 2 or torch_products.is_takeable(array)

    def workspace_bytes(self) -> int:
        """Return the bytes of the transfers' device buffers and of the product library's workspace."""
        return self._staging.device_bytes + self._library_bytes

    def packing_bytes(self) -> int:
        """Return the bytes for packed blocks of operands that are conjugated or ``can_take`` rejects."""
        return torch_products.PACKING_BYTES

    def staging_bytes(self) -> int:
        """Return the bytes of pinned host memory of the transfers."""
        return self._staging.host_bytes

    def synchronize(self) -> None:
        """Wait for the transfers and the current stream's products."""
        with translated("synchronize", f"on {self.name}"):
            self._lanes.synchronize()

    def empty_cache(self) -> None:
        """Make torch return the memory it keeps for reuse."""
        if self._device.type != "cpu":
            self._module().empty_cache()

    def _check_dtypes(self, op: str, *arrays: torch.Tensor) -> None:
        dtypes = [numpy_dtype(each.dtype) for each in arrays]
        if dtypes[0] in HALVES and self.multiplies(dtypes[0]):
            check_halves(op, dtypes[0], dtypes[-2], dtypes[-1])
            return
        check_dtypes(op, *dtypes)
        if not self.multiplies(dtypes[0]):
            raise DTypeError(
                f"[{op}] {dtypes[0]} on {self.name}: torch multiplies no integers there, and accelera was "
                f"built without its CUDA kernels; build it with ACCELERA_CUDA=ON, or use the CPU"
            )

    def _sums_halves(self, dtype: np.dtype[Any]) -> bool:
        if dtype not in self._halves:
            self._halves[dtype] = torch_products.sums_halves(torch_dtype(dtype, self._device), self._device)
        return self._halves[dtype]

    def _memory(self) -> tuple[int, int]:
        """Return (available bytes, total bytes)."""
        if self._device.type == "cpu":
            host = host_memory()
            return host.available_bytes, host.limit_bytes
        module = self._module()
        if self._device.type == "mps":
            total = int(module.recommended_max_memory())
            return total - int(module.current_allocated_memory()), total
        free, total = module.mem_get_info(self._device)
        spare = module.memory_reserved(self._device) - module.memory_allocated(self._device)
        return int(free + spare), int(total)

    def _module(self) -> Any:
        return torch.get_device_module(self._device)


def _multiplies_integers(kind: str) -> bool:
    return kind == "cpu" or (kind == "cuda" and _native.cuda_compiled())
