"""State of the library in this process: memory and its limit, threads, the op table."""

from __future__ import annotations

from typing import Any

from accelera import units
from accelera.errors import ArgumentError
from accelera.tensora import core
from accelera.tensora.core import Tensor, native
from accelera.tensora.memory_limit import set_limit
from accelera.tensora.typing import Device

MemoryStats = core.MemoryStats
"""Bytes that tensors hold, their peak, what is kept for the next ones, and the limit; all integers."""


def memory_stats(device: Device = "cpu") -> MemoryStats:
    """Return what tensors on a device hold now, as `MemoryStats`.

    `live_by_role` and `peak_by_role` are dictionaries of the same bytes, the latter at the moment of the
    peak: "parameter" (a leaf with requires_grad), "activation" (saved for a backward pass), "gradient" (made
    in one), "optimizer" (its state), "workspace" (of one operation) and "other".
    `live_bytes` and `peak_bytes` count blocks, which are up to a quarter larger than their tensors; memory of
    other libraries does not count.
    """
    return native.memory_stats(str(device))


def reset_peak(device: Device = "cpu") -> None:
    """Reset `peak_bytes` of a device to the bytes held now."""
    native.reset_peak(str(device))


def set_memory_limit(limit: int | str | None, device: Device = "cpu") -> None:
    """Limit the bytes that tensors on a device may hold at once.

    Parameters
    ----------
    limit
        Bytes, or a size as "2GiB"; None lifts the limit. An operation that would exceed it raises MemoryError
        before anything is allocated, with the smallest limit that would do.
    device
        "cpu", or a CUDA device.

    Raises
    ------
    ValueError
        If tensors hold more already, or it is no size above 0.

    """
    nbytes = None if limit is None else units.parse_limit("set_memory_limit", limit)
    set_limit("user", nbytes, str(device))


def empty_cache(device: Device = "cpu") -> None:
    """Return cached memory of a device, kept for new tensors, to the system."""
    native.empty_cache(str(device))


class fusion:  # noqa: N801 - used as a function and as a context, like torch.set_grad_enabled
    """Switch for deferring elementwise operations on large tensors, so that chains of them run together.

    A deferred result is computed when its elements are needed: by another kind of operation, by a reader,
    or before its inputs are written in place. Values are those of the operations one after the other. Memory
    that another library shares is read at once. Takes effect when it is called, for the whole process; as a
    context it is undone at the end.

    Parameters
    ----------
    enabled
        Whether operations are deferred. They are unless this was called.
    least
        Results of fewer elements are computed at once.

    Raises
    ------
    ValueError
        If `least` is below 1.

    """

    def __init__(self, enabled: bool = True, *, least: int = 32768) -> None:
        if least < 1:
            raise ArgumentError(f"[fusion] least={least}; give at least 1")
        self._before = native.fusion_least()
        native.set_fusion_least(least if enabled else _NEVER)

    def __enter__(self) -> fusion:
        return self

    def __exit__(self, *_: object) -> None:
        native.set_fusion_least(self._before)


_NEVER = 2**63 - 1


def compute(*tensors: Tensor) -> None:
    """Run the deferred operations of these tensors, if any: to time them, or to free their inputs."""
    for each in tensors:
        native.compute(each)


def get_num_threads() -> int:
    """Return how many threads work on one operation."""
    return int(native.thread_count())


def set_num_threads(n: int) -> None:
    """Set how many threads work on one operation, for the whole process; at least 1."""
    native.set_thread_count(n)


def instruction_set() -> str:
    """Return the instruction set that the loops were chosen for, as "x86-64-v3"."""
    return str(native.instruction_set())


def ops() -> list[dict[str, Any]]:
    """Return the op table: of each primitive its name, family, inputs, outputs, and what it is.

    `differentiable`, `view`, and `cuda`: whether it has a kernel for CUDA devices. `autocast`: what inputs
    are cast to in a block of mixed precision, "inputs" for nothing.
    """
    return list(native.ops())
