"""What a place must do: give memory to the pool, and move it to and from homes."""

from __future__ import annotations

from typing import Any, Protocol

from accelera.memory.pool.homes import BackingStore


class DeviceMemory(Protocol):
    """The memory in which residents lie."""

    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        """Return new memory of ``nbytes`` as its users see it, and as the place knows it.

        Its contents are undefined. Raises DeviceMemoryError when there is none.
        """

    def promise(self, nbytes: int) -> None:
        """Take note that so many more bytes (or fewer) are, or will be, allocated."""

    def release(self, memory: Any) -> None:
        """Give memory back to the system."""

    def load(self, home: BackingStore, memory: Any, start: int, stop: int) -> int:
        """Fill bytes ``start`` to ``stop`` from ``home``; return how many they are."""

    def save(self, memory: Any, home: BackingStore, start: int, stop: int) -> int:
        """Store bytes ``start`` to ``stop`` in ``home``; return how many they are."""
