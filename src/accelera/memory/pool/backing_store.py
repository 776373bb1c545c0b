"""Blocks of the pool, their backing stores, the device memory of resident ones, and the free list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

import numpy as np

from accelera.memory.pool.transfers import Transfer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class BackingStore(Protocol):
    """The bytes of one block outside the pool; several threads may move parts of them at once."""

    nbytes: int

    @property
    def writable(self) -> bool:
        """Whether ``write`` may be called."""

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on; return their count."""

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; return the count of bytes."""

    def resident(self) -> Bytes | None:
        """Return the bytes themselves when they lie in RAM, else None."""

    def mapped(self) -> Bytes:
        """Return the bytes as an array that takes no anonymous memory until it is written to."""

    def release(self) -> None:
        """Free the space; the bytes are no longer needed."""


class BackingStores(Protocol):
    """Creates backing stores, all of one kind."""

    def create(self, nbytes: int) -> BackingStore:
        """Return a writable backing store of ``nbytes``, its contents undefined."""

    def close(self) -> None:
        """Release every backing store made here."""


class DeviceMemory(Protocol):
    """The memory of resident blocks."""

    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        """Return new memory of ``nbytes`` in two forms: for operations, and for the methods of this class.

        Its contents are undefined. Raises DeviceMemoryError when there is none.
        """

    def promise(self, nbytes: int) -> None:
        """Reserve ``nbytes`` that are, or will be, allocated; a negative number cancels."""

    def release(self, memory: Any) -> None:
        """Give memory back to the system."""

    def load(self, home: BackingStore, memory: Any, start: int, stop: int) -> int:
        """Fill bytes ``start`` to ``stop`` from the backing store ``home``; return their count."""

    def save(self, memory: Any, home: BackingStore, start: int, stop: int) -> int:
        """Store bytes ``start`` to ``stop`` in the backing store ``home``; return their count."""


@dataclass(eq=False)
class PoolBlock:
    """One buffer of the pool, with the backing store of its bytes while they are not resident."""

    id: int
    nbytes: int
    role: str = ""
    """What the bytes are, one of the roles of a trace."""
    name: str = ""
    dtype: str = ""
    home: BackingStore | None = None
    """Its backing store; None until the contents are first saved."""
    filled: bool = False
    """Whether it has contents: adopted, attached, or written by a use."""
    leaving: Transfer | None = None
    """The save begun when it was last evicted."""
    saving: Transfer | None = None
    """The latest save into its backing store."""


class Use(NamedTuple):
    """Use of a block by an operation."""

    block: PoolBlock
    read: bool = True
    """Its contents are needed."""
    write: bool = False
    """Its contents change; without ``read`` they are all written."""


T = TypeVar("T")


@final
class FreeList(Generic[T]):
    """Free pieces of memory, by size."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[T]] = defaultdict(list)

    def add(self, nbytes: int, piece: T) -> None:
        """Keep ``piece`` of ``nbytes``."""
        self._pieces[nbytes].append(piece)

    def take(self, nbytes: int, ready: Callable[[T], bool] | None = None) -> T | None:
        """Return a piece of exactly ``nbytes``, or None when there is none: the newest.

        With ``ready``, the oldest piece for which it is true; where it is true of none, the oldest.
        """
        pieces = self._pieces[nbytes]
        if not pieces or ready is None:
            return pieces.pop() if pieces else None
        return pieces.pop(next((i for i, each in enumerate(pieces) if ready(each)), 0))

    def trim(self, nbytes: int) -> Iterator[tuple[int, T]]:
        """Remove and yield (size, piece), largest first, until they come to ``nbytes`` or more."""
        for size in sorted(self._pieces, reverse=True):
            while self._pieces[size] and nbytes > 0:
                nbytes -= size
                yield size, self._pieces[size].pop()

    def clear(self) -> list[tuple[int, T]]:
        """Remove all; return (size, piece) of each."""
        pieces = [(size, each) for size, kept in self._pieces.items() for each in kept]
        self._pieces.clear()
        return pieces
