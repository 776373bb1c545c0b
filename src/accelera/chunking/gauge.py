"""What chunking needs to know of a memory: how much there is and how much is free."""

from __future__ import annotations

from typing import Any, Protocol


class MemoryGauge(Protocol):
    """Anything that can say how full a memory is (``accelera.memory.MemoryManager`` can)."""

    def get_available_memory(self) -> int:
        """Return the bytes free now."""

    def get_total_memory(self) -> int:
        """Return the bytes there are."""


class MemoryMover(MemoryGauge, Protocol):
    """A gauge that also brings arrays to the memory it measures."""

    def move_to_gpu(self, tensor: Any) -> Any:
        """Return ``tensor`` on the device, unchanged when it is there already."""


def available_fraction(gauge: MemoryGauge) -> float:
    """Return the free share of the memory, 0 to 1."""
    return gauge.get_available_memory() / max(1, gauge.get_total_memory())
