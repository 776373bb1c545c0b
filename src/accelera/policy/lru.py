"""LRU: evict the buffer that was used longest ago.

1. Keep resident buffers in a queue, oldest first.
2. A touch moves its buffer to the young end.
3. The victim is the first evictable one from the old end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class LRU:
    """Least recently used."""

    def __init__(self) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict()

    def insert(self, buffer: int, nbytes: int, time: int) -> None:
        """Take note that ``buffer`` became resident."""
        self._queue[buffer] = None

    def touch(self, buffer: int, time: int) -> None:
        """Move ``buffer`` to the young end."""
        self._queue.move_to_end(buffer)

    def remove(self, buffer: int) -> None:
        """Forget ``buffer``."""
        del self._queue[buffer]

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Return the evictable buffer used longest ago, or None."""
        return next(filter(evictable, self._queue), None)
