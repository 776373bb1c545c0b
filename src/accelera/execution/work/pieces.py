"""Consecutive tasks that one side takes at once."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple


class Side(enum.Enum):
    """Who takes tasks."""

    CPU = "cpu"
    GPU = "gpu"


class Piece(NamedTuple):
    """Tasks that follow one another."""

    start: int
    """Index of the first."""
    tasks: Sequence[Any]

    @property
    def stop(self) -> int:
        """Index after the last."""
        return self.start + len(self.tasks)

    def part(self, begin: int, end: int) -> Piece:
        """Return the tasks from ``begin`` up to ``end``, counted within this piece."""
        return Piece(self.start + begin, self.tasks[begin:end])
