"""Policies written in Python, as users write them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from accelera.policy import EvictionPolicy


class OrderedLru(EvictionPolicy):
    """LRU as anybody would write it."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()

    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        self.order[buffer] = None

    def touch(self, buffer: int, time: int, write: bool) -> None:
        self.order.move_to_end(buffer)

    def remove(self, buffer: int) -> None:
        del self.order[buffer]

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        return next(filter(evictable, self.order), None)
