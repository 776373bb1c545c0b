"""Options of one operation that goes by a plan, and the memory that its budget grants.

Options are built once from what a caller gave, and handed on whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, TypeAlias, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from accelera.chunking import AdaptiveChunking
from accelera.devices import Device
from accelera.engine.report import RunObserver
from accelera.engine.staging import buffer_bytes
from accelera.errors import BudgetExceededError
from accelera.memory import MemoryManager
from accelera.plan import Plan
from accelera.plan._internal import Eviction, Objective, Operand, PolicyMaker, SavedPlan
from accelera.stores import Store
from accelera.trace import Trace
from accelera.trace._internal import Recorder

Amount = int | float | str
"""Memory as people write it: bytes, ``"512MiB"``, or a share such as ``0.5``."""

Destination: TypeAlias = "Store | str | PathLike[str]"
"""Where an operation writes its result so that it returns a store."""

USUAL_WINDOW = 3
"""Steps under way at once: the one computed and two being loaded."""


class OperationKeywords(TypedDict, total=False):
    """Keywords that every operation of an engine takes."""

    budget: Amount | None
    """Most memory it may add, such as ``"512MiB"`` or ``0.5``; by default the engine's."""
    resume: bool
    """Finish an interrupted run that wrote to the same file, if there is one."""
    plan: Plan | SavedPlan | str | PathLike[str] | None
    """The plan to follow: one made before, or the path of a saved one."""
    observers: Sequence[RunObserver]
    """Told of the progress."""
    recorder: Recorder | None
    """Told of every access."""
    chunks: Sequence[int] | None
    """Chunk shape of a new Zarr array that the result goes to; by default at most 4 MiB."""
    codec: str | None
    """How its chunks are compressed: ``"zstd"``, ``"gzip"``, ``"blosc-lz4"``, with a level ``"zstd:9"``."""


class MatmulKeywords(OperationKeywords, total=False):
    """Keywords of a product."""

    objective: Objective
    """``"time"``, or ``"bytes"`` to move as few as possible even if that takes longer."""
    cluster: Any
    """``"ray"``, a ``RayCluster`` or a ``RayExecutor``, whose nodes compute the blocks of the result."""
    node_budget: Amount | None
    """Most memory that a block may add on its node; by default ``budget``."""


@final
@dataclass(frozen=True)
class OperationOptions:
    """How one operation is planned and run."""

    budget_bytes: int | None = None
    """Most memory it may add; None: what the device has free."""
    host_budget_bytes: int | None = None
    """The budget when the CPU computes in place of an accelerator; None: the same."""
    objective: Objective = "time"
    """What a product saves first: time, or bytes moved."""
    prefetch: bool = True
    """Load the next blocks while one is worked on."""
    readers: int = 2
    """Reader threads."""
    eviction: Eviction = field(default_factory=Eviction)
    """Policy that evicts blocks when the pool is full."""
    window: int = USUAL_WINDOW
    """Steps under way at once where data is loaded ahead, and where the memory suffices for them."""
    resume: bool = False
    """Finish an interrupted run that wrote to the same file."""
    pinned: SavedPlan | None = None
    """The plan to follow, made before; None: make one."""
    observers: Sequence[RunObserver] = ()
    recorder: Recorder | None = None
    adaptation: PressureWatch | None = None
    """Tells a run of memory pressure; None: the run does not watch for it."""

    def within(self, budget_bytes: int | None, host_budget_bytes: int | None = None) -> OperationOptions:
        """Return the same options with another budget."""
        return replace(self, budget_bytes=budget_bytes, host_budget_bytes=host_budget_bytes)

    def planned(self, plan: Callable[[int], Plan]) -> Plan:
        """Return ``plan(window)``, with the usual window where the wanted one is too wide for the budget."""
        if not self.prefetch:
            return plan(1)
        if self.window <= USUAL_WINDOW:
            return plan(self.window)
        try:
            return plan(self.window)
        except BudgetExceededError:
            return plan(USUAL_WINDOW)


USUAL = OperationOptions()
"""Every option at its default."""


def budget_for(budget: Amount | None, pinned: SavedPlan | None) -> Amount | None:
    """Return the budget that was given, or the one that a pinned plan was made for."""
    return pinned.budget_bytes if budget is None and pinned is not None else budget


def eviction_of(policy: str | PolicyMaker) -> Eviction:
    """Return the eviction that ``policy`` names or makes; ``"learned"`` gets its trained scorer.

    Raises UnknownNameError with similar names, TypeError for a policy object instead of its maker.
    """
    return Eviction(policy, _learned_scores if policy == "learned" else None)


def _learned_scores(trace: Trace) -> NDArray[np.float64]:
    from accelera.simulator import score

    return score(trace, "learned")


RUNTIME_BYTES = 8 << 20
"""Threads' stacks, the plan's own lists, and the allocator's slack."""


@dataclass(frozen=True)
class MemorySplit:
    """The budget of one run, divided into reserved bytes and blocks."""

    tier: str
    """The tier that the budget governs."""
    budget_bytes: int
    reserved: Mapping[str, int]
    """Bytes of host RAM for other things than blocks, by purpose."""

    @classmethod
    def on(
        cls,
        device: Device,
        budget_bytes: int | None,
        operands: Iterable[Operand],
        readers: int,
        result_bytes: int,
    ) -> MemorySplit:
        """Divide ``budget_bytes`` (None: what the device has free) for a run on ``device``."""
        given = list(operands)
        threads = readers + 1
        buffers = max((buffer_bytes(device, each) for each in given if not each.in_place), default=0)
        scratch = max((each.scratch_bytes for each in given if not each.in_place), default=0)
        reserved = {
            "result": result_bytes,
            "staging": threads * (buffers + scratch) + sum(operand.cache_bytes for operand in given),
            "arithmetic": device.workspace_bytes(),
            "runtime": RUNTIME_BYTES,
        }
        limit = device.available_bytes() if budget_bytes is None else budget_bytes
        return cls("ram" if device.host_memory else device.name, limit, reserved)

    def capacity(self, limit_bytes: int | None = None) -> int:
        """Return the bytes left for blocks, at most ``limit_bytes``; negative when nothing is left."""
        left = self.budget_bytes - (sum(self.reserved.values()) if self.tier == "ram" else 0)
        return left if limit_bytes is None else min(left, limit_bytes)


_FURTHER = 0.8
"""Pressure is reported again only when the free share has fallen to this part of the last report."""


@final
class PressureWatch:
    """Tells a planned run when an adaptive strategy would shrink its chunks.

    Memory that the run itself has allocated counts as free: filling its own budget is no pressure. Where
    memory was short before the run, the threshold follows from the share that was free then.
    """

    def __init__(self, strategy: AdaptiveChunking, memory: MemoryManager) -> None:
        self._strategy = strategy
        self._memory = memory
        self._held_before_bytes = memory.get_allocated_memory()
        self._threshold = min(strategy.pressure_fraction, _FURTHER * self._free_fraction())

    def under_pressure(self) -> bool:
        """Return whether the next blocks should be smaller."""
        free = self._free_fraction()
        if free >= self._threshold:
            return False
        self._threshold = _FURTHER * free
        return True

    def on_out_of_memory(self) -> None:
        """Tell the strategy that the device ran out of memory."""
        self._strategy.on_out_of_memory()

    def _free_fraction(self) -> float:
        held_bytes = max(0, self._memory.get_allocated_memory() - self._held_before_bytes)
        return (self._memory.get_available_memory() + held_bytes) / max(1, self._memory.get_total_memory())
