"""Memory guard: counts tensors beside the blocks of a model, evicts blocks in time, or refuses."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, final

import torch

from accelera._native import Arena, arena_functions
from accelera.devices._internal import shim_library
from accelera.errors import BudgetExceededError
from accelera.memory import process_memory
from accelera.memory._internal import Use
from accelera.units import format_bytes

MAPPED_BYTES = 1 << 20
"""Tensors from this size on have pages of their own while something is offloaded."""

_DEFAULT_THRESHOLD_BYTES = 32 << 20
"""The size to which glibc's own limit grows in a process that frees large tensors."""

_MMAP_THRESHOLD = -3

_users = 0

_lock = threading.RLock()
"""The garbage collector may end a user while this thread counts another."""


@cache
def arenas_in_torch() -> bool:
    """Make PyTorch allocate CPU tensors from arenas (``csrc/memory/arena.h``); return whether it does.

    It needs the shim compiled for the loaded torch. Once set it stays: threads that enter no arena allocate
    as before.
    """
    library = shim_library()
    if library is None or not hasattr(library, "accelera_use_arenas"):
        return False
    arrange = library.accelera_use_arenas
    arrange.restype, arrange.argtypes = ctypes.c_char_p, [ctypes.c_int64] * 3
    return arrange(*arena_functions()) is None


def give_pages_back(user: object) -> None:
    """Give freed tensors of ``MAPPED_BYTES`` and more back to the system for as long as ``user`` lives.

    For processes whose tensors come from no arena: glibc keeps freed memory. Once a large tensor has been
    freed, tensors of up to 32 MiB come from a heap, in which small ones that live on leave holes. These count
    against the budget although nothing is in them. Nothing happens where the C library has no such choice.
    """
    _count(1)
    weakref.finalize(user, _count, -1).atexit = False


def free_heap_bytes() -> int:
    """Return the bytes that the C library's main heap holds and nobody uses; 0 where it does not say."""
    ask = getattr(_library(), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _HeapFigures
    return int(ask().free_bytes)


class _HeapFigures(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("free_bytes", "keepcost"),
        )
    ]


def _count(change: int) -> None:
    global _users
    with _lock:
        before, _users = _users, _users + change
        if not (before and _users):
            _set_threshold(MAPPED_BYTES if _users else _DEFAULT_THRESHOLD_BYTES)


def _set_threshold(nbytes: int) -> None:
    choose = getattr(_library(), "mallopt", None)
    if choose is not None:
        choose(_MMAP_THRESHOLD, nbytes)


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


class MemoryCount(Protocol):
    """Count of the bytes that count against a budget and are no blocks of the pool."""

    exact: bool
    """Whether it counts what the model's operations allocate, and not what the process holds."""

    def others_bytes(self) -> int:
        """Return them."""

    @property
    def peak_bytes(self) -> int:
        """Most that there were since ``restart_peak``."""

    def restart_peak(self) -> int:
        """Return the most that there were since the last call."""

    def pause(self) -> None:
        """Take note that what is allocated from now on is not the model's."""

    def resume(self) -> None:
        """Take note that it is the model's again."""


@final
class ArenaCount:
    """Tensors that came from the arena of the model."""

    exact = True

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def others_bytes(self) -> int:
        """Return the bytes of the tensors that are alive."""
        return self.arena.ordinary_bytes

    @property
    def peak_bytes(self) -> int:
        """Most that were alive since ``restart_peak``."""
        return self.arena.peak_ordinary_bytes

    def restart_peak(self) -> int:
        """Return the most that were alive since the last call."""
        peak = self.peak_bytes
        self.arena.reset_peaks()
        return peak

    def pause(self) -> None:
        """Only the model's tensors come from the arena."""

    def resume(self) -> None:
        """Only the model's tensors come from the arena."""


@final
class HeldCount:
    """Everything that a process, or its accelerator, holds beyond the least that was seen so far.

    ``blocks_bytes`` of what ``held_bytes`` returns are blocks. What is added while the count is paused is
    somebody else's.
    """

    exact = False

    def __init__(self, held_bytes: Callable[[], int], blocks_bytes: Callable[[], int]) -> None:
        self._held_bytes = held_bytes
        self._blocks_bytes = blocks_bytes
        self._least_bytes = sys.maxsize
        self._peak_bytes = 0
        self._paused_at_bytes: int | None = None

    def others_bytes(self) -> int:
        """Return the growth since the least that was seen."""
        others = self._held_bytes() - self._blocks_bytes()
        self._least_bytes = min(self._least_bytes, others)
        self._peak_bytes = max(self._peak_bytes, others - self._least_bytes)
        return others - self._least_bytes

    @property
    def peak_bytes(self) -> int:
        """Largest growth that was seen since ``restart_peak``."""
        return self._peak_bytes

    def restart_peak(self) -> int:
        """Return the largest growth that was seen since the last call."""
        peak, self._peak_bytes = self._peak_bytes, 0
        return peak

    def pause(self) -> None:
        """Remember the growth so far."""
        self._paused_at_bytes = self.others_bytes()

    def resume(self) -> None:
        """Leave out what was added since the count was paused."""
        others = self.others_bytes()
        if self._paused_at_bytes is not None:
            self._least_bytes += max(0, others - self._paused_at_bytes)
            self._paused_at_bytes = None


@final
class MemoryGuard:
    """Computes how many bytes of the capacity must stay free for memory that is not blocks.

    ``reserve_bytes`` are there for everything that is counted and is no block. A *phase* is a part of a step
    that comes again, such as the forward and backward pass of training: as much as it took the last time,
    where that is counted exactly, is expected from its beginning on, so that blocks leave once and not with
    every tensor. ``learns``: as much as the count ever grew unforeseen between two looks is expected to come
    again, at most half of the reserve.
    """

    def __init__(self, reserve_bytes: int, count: MemoryCount, *, learns: bool = False) -> None:
        self.exact = count.exact
        """Whether it counts what the model's operations allocate, and not what the process holds."""
        self.margin_bytes = 0
        """Room for growth before the next reading."""
        self._reserve_bytes = reserve_bytes
        self._count = count
        self._learns = learns
        self._expected_bytes = sys.maxsize
        self._phase = ""
        self._paused = True
        self._phase_peaks: dict[str, int] = {}
        self._most_bytes = 0

    @property
    def most_bytes(self) -> int:
        """Most bytes that were counted at once so far."""
        return max(self._most_bytes, self._count.peak_bytes)

    def enter(self, phase: str) -> None:
        """Begin a phase, which ends the one before; ``""`` is none."""
        peak = self._count.restart_peak()
        self._most_bytes = max(self._most_bytes, peak)
        if self._phase and self.exact:
            self._phase_peaks[self._phase] = peak
        self._set_paused(not phase)
        self._phase = phase

    def suspend(self) -> None:
        """Take note that the program runs in the middle of a phase, which goes on later."""
        self._set_paused(True)

    def resume(self, phase: str) -> None:
        """Go on with a phase that was suspended, or begin it."""
        if phase == self._phase:
            self._set_paused(False)
        else:
            self.enter(phase)

    def _set_paused(self, paused: bool) -> None:
        if paused and not self._paused:
            self._count.pause()
        elif self._paused and not paused:
            self._count.resume()
        self._paused = paused

    def expect(self, phase: str, nbytes: int) -> None:
        """Expect ``nbytes`` of other memory in a phase that is new, or will differ from the last time."""
        self._phase_peaks[phase] = nbytes

    def drop_expectation(self) -> bool:
        """Stop expecting the memory of this phase's peak; return whether anything was expected.

        Blocks are then evicted when a tensor needs their memory, and not before.
        """
        return self.exact and self._phase_peaks.pop(self._phase, 0) > self._count.others_bytes()

    def withheld_bytes(self, output_bytes: int = 0, *, settled: bool = True) -> int:
        """Return how much of the capacity must stay empty.

        ``output_bytes`` are known to be taken by what begins now. Without ``settled``, blocks are being
        allocated at this moment, and a growth tells nothing.
        """
        others = self._count.others_bytes()
        if self._learns and settled:
            growth = min(others - self._expected_bytes, self._reserve_bytes // 2)
            self.margin_bytes = max(self.margin_bytes, growth)
            self._expected_bytes = others + output_bytes
        ahead = others + output_bytes + self.margin_bytes
        return max(0, max(ahead, self._phase_peaks.get(self._phase, 0)) - self._reserve_bytes)


_REMEDY = (
    "Call offload(model, budget, inputs=EXAMPLE): it plans the whole step, works in smaller blocks if "
    "necessary, and otherwise names the smallest budget that works; or use a smaller batch"
)
"""Later operations may need a larger budget than the refused one, so a refusal in a run names none."""

_NAMED = 4
"""Most blocks that a refusal names."""


def refusal(
    op: str,
    uses: Sequence[Use],
    budget_bytes: int | None,
    error: BudgetExceededError,
    heap_bytes: int = 0,
) -> BudgetExceededError:
    """Return the pool's ``error`` reworded for the operation, with the least budget for this operation.

    Without a budget the figures stay those of the pool. ``heap_bytes`` of what is held are free memory that
    the C library keeps, where tensors are not counted one by one.
    """
    blocks = {use.block.id: use.block for use in uses}
    taken = sum(block.nbytes for block in blocks.values())
    names = [block.name or block.role or "a temporary" for block in blocks.values()]
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    needed, given = error.needed_bytes, error.budget_bytes
    if budget_bytes is not None:
        needed, given = budget_bytes * needed // given if given else 2 * needed, budget_bytes
    reason = str(error).partition("] ")[2].partition("; ")[0]
    heap = f", of it {format_bytes(heap_bytes)} free heap that the C library keeps" if heap_bytes else ""
    return BudgetExceededError(
        f"[{op or 'offload'}] works on {format_bytes(taken)} at once ({shown}): {reason}{heap}; "
        f"{format_bytes(given)} are given, and this operation needs at least {format_bytes(needed)}. "
        f"{_REMEDY}",
        needed_bytes=needed,
        budget_bytes=given,
    )


def tensor_refusal(arena: Arena, lacking_bytes: int, budget_bytes: int) -> BudgetExceededError:
    """Return the error for a tensor that would need ``lacking_bytes`` more of blocks to be evicted."""
    needed = budget_bytes + lacking_bytes
    return BudgetExceededError(
        f"[offload] a tensor does not fit: of the budget of {format_bytes(budget_bytes)}, tensors such as "
        f"activations take {format_bytes(arena.ordinary_bytes)} and blocks in use "
        f"{format_bytes(arena.committed_bytes)}, and this operation needs at least {format_bytes(needed)}. "
        f"{_REMEDY}",
        needed_bytes=needed,
        budget_bytes=budget_bytes,
    )


def held_on(device: torch.device) -> Callable[[], int]:
    """Return a function for the bytes that this process holds on ``device``; it takes a few microseconds."""
    if device.type == "cpu":
        return _AnonymousBytes() if sys.platform.startswith("linux") else lambda: process_memory().anon_bytes
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "memory_stats_as_nested_dict"):
        return lambda: int(module.memory_allocated(device))

    def requested_bytes() -> int:
        """Return the bytes without the allocator's rounding (up to 1 MiB per slab), if it reports them."""
        stats = module.memory_stats_as_nested_dict(device)
        requested, allocated = (
            stats[f"{kind}_bytes"]["all"]["current"] for kind in ("requested", "allocated")
        )
        return int(requested or allocated)

    return requested_bytes


@final
class _AnonymousBytes:
    """Private pages of this process, as ``/proc/self/statm`` counts them."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def __call__(self) -> int:
        _, resident, shared, _ = os.pread(self._descriptor, 128, 0).split(maxsplit=3)
        return (int(resident) - int(shared)) * self._page_bytes
