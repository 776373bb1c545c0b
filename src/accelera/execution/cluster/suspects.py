"""Tasks that were under way when a process died: tried once more by themselves, then given up."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, final

from accelera.execution.cluster.contract import Range
from accelera.execution.work.pieces import Piece

STRIKES: Final = 2
"""A task that killed so many processes is not tried again."""


@final
class Suspects:
    """Who killed a process is not known at first: all that were under way have one strike.

    They are run again one after the other, each noted before it begins; who is under way when a process
    dies then is guilty. Not thread-safe.
    """

    def __init__(self) -> None:
        self._strikes: Counter[int] = Counter()
        self._waiting: deque[Piece] = deque()

    def take(self) -> Piece | None:
        """Return tasks to be run by themselves; None when there are none."""
        return self._waiting.popleft() if self._waiting else None

    def put(self, piece: Piece) -> None:
        """Have ``piece`` run by itself."""
        self._waiting.append(piece)

    def strike(self, under_way: Sequence[Range]) -> list[int]:
        """Note who was under way when a process died; return the indices that are guilty."""
        guilty = []
        for start, stop in under_way:
            self._strikes.update(range(start, stop))
            if stop - start == 1 and self._strikes[start] >= STRIKES:
                guilty.append(start)
        return guilty

    def is_one(self, start: int, stop: int) -> bool:
        """Whether any index from ``start`` up to ``stop`` has a strike."""
        return any(start <= index < stop for index in self._strikes)

    def __len__(self) -> int:
        """How many pieces nobody has taken."""
        return len(self._waiting)
