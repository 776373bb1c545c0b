"""What an eviction policy must do: keep an order over resident buffers and name a victim.

A policy never counts bytes and never decides *whether* to evict: the books of the pool, or of the
simulator, do both. It only answers who goes first. The calls of one access that misses:

    miss(new) ── while there is no room: victim() -> old, evict(old) ── insert(new)

Time is the index of the access, from 0. Policies of this package are compiled (``csrc/policy``); one
of your own is a class with these methods, and works in the pool and the simulator alike.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol


class EvictionPolicy(Protocol):
    """The order in which resident buffers are given up.

    Subclass it and define ``insert``, ``touch``, ``remove`` and ``victim``; the other methods do what
    suits most.
    """

    def miss(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        """Take note that absent ``buffer`` is wanted, before room is made for it.

        Policies with a memory of the departed (ARC, LIRS) look it up here.
        """
        return

    @abstractmethod
    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        """Take note that ``buffer`` became resident at access ``time``; ``write``: with new contents."""

    @abstractmethod
    def touch(self, buffer: int, time: int, write: bool) -> None:
        """Take note that resident ``buffer`` was accessed again at ``time``."""

    @abstractmethod
    def remove(self, buffer: int) -> None:
        """Forget ``buffer``, which is needed no more."""

    def evict(self, buffer: int) -> None:
        """Take note that ``buffer`` left although it may come back; the same as ``remove`` by default."""
        self.remove(buffer)

    @abstractmethod
    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Return the resident buffer to give up first among those evictable, or None.

        It stays resident until ``evict``: a victim that cannot be saved is kept.
        """

    def dead(self, buffer: int) -> bool:
        """Return whether ``buffer`` is known not to be read again, so that it need not be written back."""
        return False
