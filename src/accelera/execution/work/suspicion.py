"""Tasks that failed on a device for no reason that is known to be the device's: the CPU will tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final


class Suspicion(NamedTuple):
    """What is held against a device."""

    error: Exception
    device: str
    blame: Callable[[], None]
    """Called when the CPU can do what the device could not."""


@final
class Suspicions:
    """Open questions by index of the task. Not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[int, Suspicion] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._of)

    def hold(self, start: int, stop: int, suspicion: Suspicion) -> None:
        """Note what happened to the tasks from ``start`` up to ``stop``."""
        self._of.update(dict.fromkeys(range(start, stop), suspicion))

    def confirmed(self, start: int, count: int) -> list[Suspicion]:
        """Return, once, what was held against devices for ``count`` tasks from ``start`` on."""
        return [self._of.pop(index) for index in range(start, start + count) if index in self._of]

    def refuted(self, index: int) -> None:
        """Drop what was held: the CPU could not do the task either."""
        self._of.pop(index, None)
