"""Numbers of blocks: those of the dead serve again, so that loops that make and free blocks repeat."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import final


@final
class BlockIds:
    """Ids from 0; a freed one goes to the next block of the same size and role, the smallest first."""

    def __init__(self) -> None:
        self.count = 0
        """How many ids there are."""
        self._spare: dict[tuple[int, str], list[int]] = defaultdict(list)

    def take(self, nbytes: int, role: str) -> int:
        """Return the id for a new block."""
        spare = self._spare[nbytes, role]
        if spare:
            return heapq.heappop(spare)
        self.count += 1
        return self.count - 1

    def give(self, id: int, nbytes: int, role: str) -> None:
        """Take back the id of a dead block."""
        heapq.heappush(self._spare[nbytes, role], id)
