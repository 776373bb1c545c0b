"""Watches what a process holds besides its blocks, so that both together stay within the budget."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, final

import torch

from accelera.memory import process_memory


@final
class Guard:
    """Knows how many bytes of the capacity are to stay empty because something else takes room, or will.

    ``capacity_bytes`` of ``budget_bytes`` were meant for blocks; the rest is for everything that the
    process, or its accelerator, holds beyond the least that was seen so far. ``learns``: as much as that ever
    grew unforeseen between two looks is expected to come again; a reserve that was planned needs no such
    margin.
    """

    def __init__(
        self, budget_bytes: int, capacity_bytes: int, held_bytes: Callable[[], int], *, learns: bool = False
    ) -> None:
        self.budget_bytes = budget_bytes
        self.peak_bytes = 0
        """Most that was seen, blocks included."""
        self.margin_bytes = 0
        """Room for what may come before the next look; at most half of the reserve."""
        self._reserve_bytes = budget_bytes - capacity_bytes
        self._held_bytes = held_bytes
        self._learns = learns
        self._least_bytes = self._expected_bytes = sys.maxsize

    def withheld_bytes(self, blocks_bytes: int, coming_bytes: int = 0, *, settled: bool = True) -> int:
        """Return how much of the capacity must stay empty while blocks take ``blocks_bytes``.

        ``coming_bytes`` are known to be taken by what begins now. Without ``settled``, blocks are being
        allocated at this moment, and a growth tells nothing.
        """
        held = self._held_bytes()
        others = held - blocks_bytes
        self._least_bytes = min(self._least_bytes, others)
        self.peak_bytes = max(self.peak_bytes, held - self._least_bytes)
        if self._learns and settled:
            growth = min(others - self._expected_bytes, self._reserve_bytes // 2)
            self.margin_bytes = max(self.margin_bytes, growth)
            self._expected_bytes = others + coming_bytes
        ahead = coming_bytes + self.margin_bytes
        return max(0, others + ahead - self._least_bytes - self._reserve_bytes)


def held_on(device: torch.device) -> Callable[[], int]:
    """Return what tells the bytes that this process holds on ``device``, in a few microseconds."""
    if device.type == "cpu":
        return _Anonymous() if sys.platform.startswith("linux") else lambda: process_memory().anon_bytes
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "memory_stats_as_nested_dict"):
        return lambda: int(module.memory_allocated(device))

    def asked_for() -> int:
        """Return it without the allocator's rounding, up to 1 MiB a slab, where the allocator tells."""
        stats = module.memory_stats_as_nested_dict(device)
        requested, allocated = (
            stats[f"{kind}_bytes"]["all"]["current"] for kind in ("requested", "allocated")
        )
        return int(requested or allocated)

    return asked_for


@final
class _Anonymous:
    """Private pages of this process, as ``/proc/self/statm`` counts them."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def __call__(self) -> int:
        _, resident, shared, _ = os.pread(self._descriptor, 128, 0).split(maxsplit=3)
        return (int(resident) - int(shared)) * self._page_bytes
