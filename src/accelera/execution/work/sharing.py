"""Who takes which tasks next: those nobody has taken, at the pace of both sides, then those that are late."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from accelera.execution.work.late import Late
from accelera.execution.work.pacing import Pacing
from accelera.execution.work.pending import Pending
from accelera.execution.work.pieces import Side

Range = tuple[int, int]


class Offer(NamedTuple):
    """What there is for a side now."""

    found: Range | None
    """Indices to be carried out."""
    more: bool
    """Whether there may be something later, where nothing was found."""
    held: bool
    """Whether there is something that the other side is to take."""


@final
class Sharing:
    """Hands tasks out. Not thread-safe, and without a clock of its own.

    Parameters
    ----------
    pending
        Which tasks nobody has taken.
    late
        What both sides are at, where one may take over from the other; None: it may not.
    pacing
        How much a side may take; None: what it asks for.
    """

    def __init__(self, pending: Pending, late: Late | None = None, pacing: Pacing | None = None) -> None:
        self.pending = pending
        self.late = late
        self.pacing = pacing

    def offer(
        self, side: Side, taker: int, count: int, left: int, now_s: float, settled: Callable[[int], bool]
    ) -> Offer:
        """Return up to ``count`` tasks for a thread of ``side``, while ``left`` are not settled."""
        found = self._fresh(side, taker, count, now_s)
        if found is not None:
            return Offer(found, True, False)
        pending = len(self.pending)
        held = bool(pending) and self.pacing is not None
        if not left or (side is Side.GPU and left <= pending and not held):
            return Offer(None, False, False)
        found = None if self.late is None else self.late.take(side, count, settled)
        return Offer(found, True, held)

    def done(self, start: int, stop: int) -> None:
        """Note that these tasks are settled."""
        if self.late is not None:
            self.late.done(start, stop)

    def back(self, start: int, stop: int, *, left: bool = False, for_good: bool = False) -> None:
        """Put tasks back that somebody took; ``left``: by a GPU that failed at them, maybe for good."""
        if self.late is not None:
            self.late.returned(start, stop)
        if self.pacing is not None:
            self.pacing.returned(stop - start)
        if left:
            self.pending.leave(start, stop, for_good=for_good)
        else:
            self.pending.give_back(start, stop)

    def give_up_gpu(self) -> int:
        """Let both have what was kept for the GPU; return how many tasks that are."""
        if self.pacing is not None:
            self.pacing.give_up_gpu()
        return self.pending.give_up_gpu_share()

    def taken_over(self) -> int:
        """Return how many tasks of the GPU, which gave them back, the CPU took; told only once."""
        return self.pending.taken_over()

    def _fresh(self, side: Side, taker: int, count: int, now_s: float) -> Range | None:
        allowed = max(count, 1)
        if self.pacing is not None:
            allowed = self.pacing.allowed(side, taker, allowed, len(self.pending), now_s)
        found = self.pending.take(side, allowed)
        if found is None:
            return None
        if self.late is not None:
            self.late.taken(side, *found)
        if self.pacing is not None:
            self.pacing.took(side, taker, found[1] - found[0], now_s)
        return found
