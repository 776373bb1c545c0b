"""Work that no GPU takes part in."""

from __future__ import annotations

import abc
from collections.abc import Callable

from accelera.execution.work.pieces import Piece


class CpuOnlyWork(abc.ABC):
    """What ``Work`` asks about GPUs, answered where there is none."""

    @abc.abstractmethod
    def give_back(self, piece: Piece) -> None:
        """Return tasks that were not begun."""

    def leave_to_cpu(
        self,
        piece: Piece,
        error: Exception,
        device: str,
        blame: Callable[[], None] | None = None,
        *,
        for_good: bool = True,
    ) -> None:
        """Return tasks that cannot be done on a GPU."""
        self.give_back(piece)

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Do nothing: nothing is kept for a GPU."""
