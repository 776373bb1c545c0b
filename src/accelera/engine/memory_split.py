"""Memory of a run: a budget divided between blocks and all else, and the watch over its pressure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from accelera.chunking import AdaptiveChunking
from accelera.devices import Device
from accelera.engine.staging import buffer_bytes
from accelera.memory import MemoryManager
from accelera.plan import Operand

RUNTIME_BYTES = 8 << 20
"""Threads' stacks, the plan's own lists, and the allocator's slack."""


@dataclass(frozen=True)
class MemorySplit:
    """The budget of one run, divided."""

    tier: str
    """The tier that the budget governs."""
    budget_bytes: int
    reserved: Mapping[str, int]
    """Bytes of host RAM that are not blocks, by what they are for."""
    host_bytes: int
    """Host RAM needed besides when the budget governs a device's memory."""

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
            "staging": threads * (buffers + scratch),
            "arithmetic": device.workspace_bytes(),
            "runtime": RUNTIME_BYTES,
        }
        limit = device.available_bytes() if budget_bytes is None else budget_bytes
        return cls("ram" if device.host_memory else device.name, limit, reserved, 0)

    def capacity(self, limit_bytes: int | None = None) -> int:
        """Return the bytes left for blocks, at most ``limit_bytes``; negative when nothing is left."""
        left = self.budget_bytes - (sum(self.reserved.values()) if self.tier == "ram" else 0)
        return left if limit_bytes is None else min(left, limit_bytes)


_FURTHER = 0.8
"""Pressure is reported again only when the free share has fallen to this part of the last report."""


@final
class PressureWatch:
    """Tells a planned run when an adaptive strategy would shrink its chunks.

    What the run itself has allocated since it began counts as free: filling one's own budget is no
    pressure. A machine that was short before is judged by what it had.
    """

    def __init__(self, strategy: AdaptiveChunking, memory: MemoryManager) -> None:
        self._strategy = strategy
        self._memory = memory
        self._held_before_bytes = memory.get_allocated_memory()
        self._floor = min(strategy.pressure_fraction, _FURTHER * self._free_fraction())

    def under_pressure(self) -> bool:
        """Return whether the next blocks should be smaller."""
        free = self._free_fraction()
        if free >= self._floor:
            return False
        self._floor = _FURTHER * free
        return True

    def on_out_of_memory(self) -> None:
        """Pass on that the device ran out."""
        self._strategy.on_out_of_memory()

    def _free_fraction(self) -> float:
        held_bytes = max(0, self._memory.get_allocated_memory() - self._held_before_bytes)
        return (self._memory.get_available_memory() + held_bytes) / max(1, self._memory.get_total_memory())
