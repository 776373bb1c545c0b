"""Outputs that wait to be taken: as they came, or in the order of their tasks."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol, final

from accelera.execution.failures import TaskFailure

Arrival = tuple[int, Any, int]
"""Index, output, bytes that it counts."""


class Failed(NamedTuple):
    """Stands where the output of a task that failed would be; a ``TaskFailure`` may be an output as well."""

    failure: TaskFailure


class Arrivals(Protocol):
    """Keeps outputs until they are taken. Not thread-safe."""

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""

    def next(self) -> Arrival | None:
        """Return the next one; None while it is not there."""


@final
class AsTheyCame:
    """Outputs in the order in which they were done."""

    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""
        self._waiting.append((index, output, nbytes))

    def next(self) -> Arrival | None:
        """Return the next one; None while there is none."""
        return self._waiting.popleft() if self._waiting else None


@final
class InOrder:
    """Outputs in the order of their tasks."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""
        self._waiting[index] = output, nbytes

    def next(self) -> Arrival | None:
        """Return the next one; None while it is not there."""
        if self._next not in self._waiting:
            return None
        index = self._next
        self._next += 1
        return (index, *self._waiting.pop(index))
