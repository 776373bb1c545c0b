"""How a run under way hears that others have taken the memory it counted on."""

from __future__ import annotations

from typing import final

from accelera.chunking import AdaptiveChunking
from accelera.memory import MemoryManager

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
