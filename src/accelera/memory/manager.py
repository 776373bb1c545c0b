"""The memory manager and budgets: what the compute device has, what may be used of it, and moves in and out.

Without an accelerator the compute device is the CPU and its memory is the RAM, so the same manager
serves both. It never imports a framework: devices and tensors are known by what they can do.
"""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from accelera.errors import BudgetExceededError, DeviceMemoryError, ShapeError
from accelera.memory.ledger import LEDGER
from accelera.memory.probe import host_memory, process_memory
from accelera.settings import current, current_value
from accelera.units import format_bytes, parse_limit

GB = 1e9
"""Unit of ``get_memory_info``: decimal, as ``memory_size() / 1e6`` is decimal megabytes."""
ALWAYS_FITS_BYTES = 2**20
"""An allocation this small is granted without looking."""
READING_LASTS_S = 0.05
"""How long a reading of the free memory may serve small requests."""


class MeasuredDevice(Protocol):
    """Part of a device that the memory manager asks (``accelera.devices.Device`` has it all)."""

    name: str
    host_memory: bool

    def total_bytes(self) -> int:
        """Return the capacity of the memory the device works in."""

    def available_bytes(self) -> int:
        """Return what can be allocated now."""

    def empty_cache(self) -> None:
        """Give cached memory back to the system."""


class _Host:
    """The CPU and its RAM, when no device is given."""

    name = "cpu"
    host_memory = True

    def total_bytes(self) -> int:
        return host_memory().limit_bytes

    def available_bytes(self) -> int:
        return host_memory().available_bytes

    def empty_cache(self) -> None:
        """The allocator keeps no cache worth returning."""


@final
class MemoryManager:
    """Watches the memory of one device.

    Parameters
    ----------
    device
        The compute device; None means the CPU and its RAM.
    threshold
        Share of its memory that may be used, 0 to 1; None means ``ACCELERA_MEMORY_THRESHOLD``.
    """

    def __init__(self, device: MeasuredDevice | None = None, threshold: float | None = None) -> None:
        self.device: MeasuredDevice = _Host() if device is None else device
        self._threshold = threshold
        self._usable_bytes = 0
        self._fresh_until_s = 0.0

    @property
    def threshold(self) -> float:
        """Share of the device's memory that may be used."""
        if self._threshold is None:
            return float(current_value("memory_threshold"))
        return self._threshold

    def get_total_memory(self) -> int:
        """Return the bytes the device has; on the CPU at most the control group's limit."""
        return self.device.total_bytes()

    def get_available_memory(self) -> int:
        """Return the bytes that are free on the device now."""
        return self.device.available_bytes()

    def get_usable_memory(self) -> int:
        """Return the bytes that may be taken now: what is free, less the share kept for others.

        Of RAM at most what ``accelera.budget`` leaves.
        """
        total_bytes = self.get_total_memory()
        kept_bytes = total_bytes - int(self.threshold * total_bytes)
        usable_bytes = max(0, self.get_available_memory() - kept_bytes)
        budgeted_bytes = self.get_budgeted_memory()
        return usable_bytes if budgeted_bytes is None else min(usable_bytes, budgeted_bytes)

    def get_budgeted_memory(self) -> int | None:
        """Return the bytes of RAM that ``accelera.budget`` leaves; None without a budget, and on a GPU."""
        return LEDGER.available_bytes() if self.device.host_memory else None

    def get_allocated_memory(self) -> int:
        """Return the bytes of the device that this process holds (everybody's, where it cannot tell)."""
        return self._own_bytes()[0]

    def can_allocate(self, size_bytes: int) -> bool:
        """Return whether ``size_bytes`` more stay within the threshold.

        Cheap enough to be asked before every operation: small requests are granted unseen, modest
        ones from a reading of the last moments.
        """
        if size_bytes <= ALWAYS_FITS_BYTES:
            return True
        budgeted_bytes = self.get_budgeted_memory()
        if budgeted_bytes is not None and size_bytes > budgeted_bytes:
            return False
        now_s = time.monotonic()
        if now_s > self._fresh_until_s or 4 * size_bytes > self._usable_bytes:
            self._usable_bytes = self.get_usable_memory()
            self._fresh_until_s = now_s + READING_LASTS_S
        if size_bytes > self._usable_bytes:
            return False
        self._usable_bytes -= size_bytes
        return True

    def estimate_size(self, shape: Sequence[int], dtype: Any = np.float32) -> int:
        """Return the bytes of an array of ``shape``; ``dtype`` is NumPy's or torch's."""
        return math.prod(shape) * itemsize_of(dtype)

    def get_memory_info(self) -> dict[str, float]:
        """Return how full the device and the RAM are.

        ``gpu_*`` describe the compute device, which on a machine without accelerator is the CPU
        and its RAM. Sizes in GB of 10^9 bytes, utilisation in percent.
        """
        host = host_memory()
        total_bytes, available_bytes = self.get_total_memory(), self.get_available_memory()
        allocated_bytes, cached_bytes = self._own_bytes()
        return {
            "gpu_allocated_gb": allocated_bytes / GB,
            "gpu_cached_gb": cached_bytes / GB,
            "gpu_available_gb": available_bytes / GB,
            "gpu_total_gb": total_bytes / GB,
            "gpu_utilization": 100 * (1 - available_bytes / max(1, total_bytes)),
            "cpu_available_gb": host.available_bytes / GB,
            "cpu_total_gb": host.limit_bytes / GB,
            "cpu_utilization": 100 * (1 - host.available_bytes / host.limit_bytes),
        }

    def get_optimal_chunk_size(
        self,
        shape: Sequence[int],
        other_shape: Sequence[int] | None = None,
        dtype: Any = np.float32,
        operation: str = "matmul",
        budget_bytes: int | None = None,
    ) -> int:
        """Return how many rows of the result one chunk may have, within the ``ACCELERA_*_CHUNK_SIZE``.

        Chunks fill ``budget_bytes``, by default what may be used of the device now.

        For ``"matmul"`` of (m, k) by ``other_shape`` (k, n) a chunk of r rows needs the whole second
        operand, r rows of the first and r of the result. Where the second operand leaves less than
        half the memory it is streamed, and the rows of the result take the other half. Any other
        operation needs two operands' rows and the result's.
        """
        itemsize = itemsize_of(dtype)
        usable_bytes = self.get_usable_memory() if budget_bytes is None else budget_bytes
        if operation == "matmul":
            rows, fitting = _matmul_rows(shape, other_shape, itemsize, usable_bytes)
        else:
            rows, fitting = shape[0], usable_bytes // max(1, 3 * math.prod(shape[1:]) * itemsize)
        settings = current()
        most = rows if settings.max_chunk_size is None else min(rows, settings.max_chunk_size)
        return max(1, min(rows, settings.min_chunk_size), min(fitting, most))

    def move_to_gpu(self, tensor: Any) -> Any:
        """Return ``tensor`` on the device; on the CPU, or when it is there already, as it is.

        Raises DeviceMemoryError, before anything moves, when it would pass the threshold.
        """
        if self.device.host_memory or str(getattr(tensor, "device", "cpu")) == self.device.name:
            return tensor
        if not self.can_allocate(tensor.nbytes):
            raise DeviceMemoryError(
                f"[move_to_gpu] {format_bytes(tensor.nbytes)} do not fit on {self.device.name}: "
                f"{format_bytes(self.get_available_memory())} of {format_bytes(self.get_total_memory())} are "
                f"free and {self.threshold:.0%} may be used; move it in chunks"
            )
        return _put(self.device, tensor)

    def move_to_cpu(self, tensor: Any) -> Any:
        """Return ``tensor`` in RAM; as it is when it lies there already."""
        return tensor.cpu() if callable(getattr(tensor, "cpu", None)) else tensor

    def cleanup(self) -> None:
        """Drop unreachable objects and give the device's cached memory back."""
        gc.collect()
        self.device.empty_cache()
        self._fresh_until_s = 0.0

    def _own_bytes(self) -> tuple[int, int]:
        """Return (allocated, cached) of this process."""
        if self.device.host_memory:
            process = process_memory()
            return process.anon_bytes + process.shmem_bytes, process.file_bytes
        used_bytes = self.get_total_memory() - self.get_available_memory()
        allocated_bytes: int = getattr(self.device, "allocated_bytes", used_bytes)
        cached_bytes: int = getattr(self.device, "cached_bytes", 0)
        return allocated_bytes, cached_bytes


def itemsize_of(dtype: Any) -> int:
    """Return the bytes of one element of a NumPy or torch dtype."""
    size = getattr(dtype, "itemsize", None)
    return size if isinstance(size, int) else np.dtype(dtype).itemsize


def _matmul_rows(
    shape: Sequence[int], other_shape: Sequence[int] | None, itemsize: int, usable_bytes: int
) -> tuple[int, int]:
    """Return (rows of the result, rows of a chunk that fits)."""
    if other_shape is None or len(shape) < 2 or len(other_shape) < 2 or shape[-1] != other_shape[-2]:
        raise ShapeError(
            f"[chunk_size] a matmul chunk needs both shapes, (m, k) and (k, n); got {shape} and {other_shape}"
        )
    (rows, inner), columns = shape[-2:], other_shape[-1]
    left_bytes = usable_bytes - inner * columns * itemsize
    if 2 * left_bytes >= usable_bytes:
        return rows, left_bytes // max(1, (inner + columns) * itemsize)
    return rows, usable_bytes // max(1, 2 * columns * itemsize)


def _put(device: Any, tensor: Any) -> Any:
    """Copy to a device: by the framework when it made both sides, else through the device's own buffers."""
    buffer = device.allocate(tensor.nbytes)
    if hasattr(tensor, "to") and hasattr(buffer, "to"):
        device.release(buffer)
        return tensor.to(buffer.device)
    host = np.asarray(tensor)
    target = device.view(buffer, host.shape, host.dtype, tuple(range(host.ndim)))
    weakref.finalize(target, device.release, buffer)
    device.upload(host, target)
    return target


class UsableMemory(Protocol):
    """Memory that a budget is a share of (``MemoryManager`` is one)."""

    def get_total_memory(self) -> int:
        """Return the bytes there are."""

    def get_usable_memory(self) -> int:
        """Return the bytes that may be taken now without leaving the threshold."""

    def get_budgeted_memory(self) -> int | None:
        """Return the bytes that ``accelera.budget`` leaves of it; None where it sets no limit."""


@dataclass(frozen=True)
class Budget:
    """The bytes that may be used, and where the figure comes from."""

    limit_bytes: int
    origin: str
    """For messages: ``"budget"``, ``"accelera.budget"``, or the name of a setting."""

    @classmethod
    def parse(cls, amount: int | float | str | None, memory: UsableMemory) -> Budget:
        """Read a budget as people write it.

        An int or ``"512MiB"`` is bytes; a float up to 1, ``"0.5"`` or ``"50%"`` is a share of the
        memory there is. None takes ``ACCELERA_BUDGET``, and without that what the threshold leaves
        free now. ``accelera.budget`` caps all of them. Raises ArgumentError for anything else, also for a
        float above 1 that is no whole number of bytes: 1.5 is neither a share nor a size.
        """
        return cls.requested(amount, memory).within(memory.get_budgeted_memory())

    @classmethod
    def requested(cls, amount: int | float | str | None, memory: UsableMemory) -> Budget:
        """Read a budget as ``parse`` does, without the cap of ``accelera.budget``."""
        if amount is not None:
            return cls(parse_limit("budget", amount, memory.get_total_memory), "budget")
        default = current().budget
        if default is not None:
            return cls(parse_limit("budget", default, memory.get_total_memory), "ACCELERA_BUDGET")
        return cls(memory.get_usable_memory(), "ACCELERA_MEMORY_THRESHOLD")

    def within(self, left_bytes: int | None) -> Budget:
        """Return this budget, or ``left_bytes`` where ``accelera.budget`` leaves less."""
        if left_bytes is None or self.limit_bytes <= left_bytes:
            return self
        return Budget(left_bytes, "accelera.budget")

    @property
    def is_given(self) -> bool:
        """Whether it was asked for; otherwise the free memory decides."""
        return self.origin != "ACCELERA_MEMORY_THRESHOLD"

    @property
    def allowance(self) -> str:
        """How much it allows, for messages: ``"more than the " + allowance``."""
        size = f"{format_bytes(self.limit_bytes)} ({self.limit_bytes:,} bytes)"
        if self.is_given:
            return f"{size} that {self.origin} allows"
        return f"{size} that are free now within {self.origin}, a share of the memory"

    def remedy(self, needed_bytes: int) -> str:
        """Return what to do where ``needed_bytes`` are wanted, for messages."""
        if self.is_given:
            return f"raise it to at least {needed_bytes:,} bytes"
        return f"free memory, or set a budget (ACCELERA_BUDGET) of at least {needed_bytes:,} bytes"

    def require(self, needed_bytes: int, op: str, what: str) -> None:
        """Raise BudgetExceededError with both numbers when ``needed_bytes`` do not fit."""
        if needed_bytes > self.limit_bytes:
            raise BudgetExceededError(
                f"[{op}] {what} needs {format_bytes(needed_bytes)} ({needed_bytes:,} bytes), more than the "
                f"{self.allowance}; {self.remedy(needed_bytes)}, or write the result to a file with out=",
                needed_bytes=needed_bytes,
                budget_bytes=self.limit_bytes,
            )

    def __str__(self) -> str:
        return f"{format_bytes(self.limit_bytes)} ({self.origin})"
