"""Failures on demand: which allocations, transfers and computations of a simulated device go wrong."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from accelera.errors import DeviceError, DeviceMemoryError
from accelera.units import format_bytes

Nth = int | Iterable[int]
"""One ordinal or several; the first is 1."""


@dataclass(frozen=True)
class FaultPlan:
    """What is to fail. The empty plan lets everything pass."""

    oom_at: Nth = ()
    """Allocations that run out of memory, counted from 1."""
    oom_above_bytes: int | None = None
    """Allocations that would take the device above so many bytes run out of memory."""
    oom_probability: float = 0.0
    """Share of the allocations that run out of memory, drawn from ``seed``."""
    seed: int = 0
    """Seed of the draws: the same one makes the same allocations fail."""
    fail_transfer_at: Nth = ()
    """Uploads and downloads, counted together from 1, that raise DeviceError."""
    fail_compute_at: Nth = ()
    """Products, counted from 1, that raise DeviceError."""


class Faults:
    """Counts what a device does and fails where the plan says so; safe to use from several threads."""

    def __init__(self, plan: FaultPlan) -> None:
        if not 0 <= plan.oom_probability <= 1:
            raise ValueError(f"[faults] oom_probability={plan.oom_probability} must lie between 0 and 1")
        self._plan = plan
        self._oom_at, self._transfer_at, self._compute_at = (
            frozenset([nth] if isinstance(nth, int) else nth)
            for nth in (plan.oom_at, plan.fail_transfer_at, plan.fail_compute_at)
        )
        self._random = random.Random(plan.seed)
        self._lock = threading.Lock()
        self.allocations = 0
        """Allocations asked for so far, failed ones included."""
        self.transfers = 0
        """Uploads and downloads begun so far."""
        self.computations = 0
        """Products begun so far."""

    def on_allocate(self, nbytes: int, held_bytes: int) -> None:
        """Raise DeviceMemoryError when this allocation, on top of ``held_bytes``, is to fail."""
        with self._lock:
            self.allocations += 1
            count = self.allocations
            drawn = self._random.random() < self._plan.oom_probability
        above = self._plan.oom_above_bytes
        if count in self._oom_at or drawn or (above is not None and held_bytes + nbytes > above):
            raise DeviceMemoryError(
                f"[allocate] allocation {count}, {format_bytes(nbytes)} over {format_bytes(held_bytes)}: "
                f"the simulated device was told to run out of memory here"
            )

    def on_transfer(self, op: str) -> None:
        """Raise DeviceError when this transfer is to fail."""
        with self._lock:
            self.transfers += 1
            count = self.transfers
        self._fail(op, f"transfer {count}", count in self._transfer_at)

    def on_compute(self, op: str) -> None:
        """Raise DeviceError when this computation is to fail."""
        with self._lock:
            self.computations += 1
            count = self.computations
        self._fail(op, f"computation {count}", count in self._compute_at)

    def _fail(self, op: str, which: str, fails: bool) -> None:
        if fails:
            raise DeviceError(f"[{op}] {which}: the simulated device was told to fail here")
