"""What several threads use, and must not end under any of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final


@final
class InUse:
    """Counts who is at it; whoever would end it waits for them, and lets nobody begin meanwhile."""

    def __init__(self) -> None:
        self._count = 0
        self._turn = threading.Condition()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Be at it; waits while somebody ends it."""
        with self._turn:
            self._count += 1
        try:
            yield
        finally:
            with self._turn:
                self._count -= 1
                self._turn.notify_all()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Wait until nobody is at it, and have all others wait; must not be called by who is."""
        with self._turn:
            self._turn.wait_for(lambda: not self._count)
            yield
