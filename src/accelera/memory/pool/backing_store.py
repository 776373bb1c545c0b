"""Blocks of the pool, the device memory in which residents lie, free memory, and the backing stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

import numpy as np

from accelera.memory.pool.transfers import Transfer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class BackingStore(Protocol):
    """The place of one block's bytes outside the pool; pieces may move in several threads at once."""

    nbytes: int

    @property
    def writable(self) -> bool:
        """Whether ``write`` may be called."""

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on; return how many they are."""

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; return how many bytes they are."""

    def resident(self) -> Bytes | None:
        """Return the bytes themselves when they lie in RAM, else None."""

    def mapped(self) -> Bytes:
        """Return the bytes as an array that takes no anonymous memory until it is written to."""

    def release(self) -> None:
        """Give the room back; the bytes are needed no more."""


class BackingStores(Protocol):
    """Makes new homes, all of one kind."""

    def create(self, nbytes: int) -> BackingStore:
        """Return a writable home of ``nbytes``, its contents undefined."""

    def close(self) -> None:
        """Give up every home made here."""


class DeviceMemory(Protocol):
    """The memory in which residents lie."""

    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        """Return new memory of ``nbytes`` as its users see it, and as the place knows it.

        Its contents are undefined. Raises DeviceMemoryError when there is none.
        """

    def promise(self, nbytes: int) -> None:
        """Take note that ``nbytes`` more (or fewer) are, or will be, allocated."""

    def release(self, memory: Any) -> None:
        """Give memory back to the system."""

    def load(self, home: BackingStore, memory: Any, start: int, stop: int) -> int:
        """Fill bytes ``start`` to ``stop`` from ``home``; return how many they are."""

    def save(self, memory: Any, home: BackingStore, start: int, stop: int) -> int:
        """Store bytes ``start`` to ``stop`` in ``home``; return how many they are."""


@dataclass(eq=False)
class PoolBlock:
    """One buffer of the pool and where its bytes live when they are not resident."""

    id: int
    nbytes: int
    role: str = ""
    """What the bytes are, one of ``accelera.trace.ROLES``."""
    name: str = ""
    dtype: str = ""
    home: BackingStore | None = None
    """None until the contents are first saved."""
    filled: bool = False
    """Whether it has contents: some were adopted, attached, or written by a use."""
    leaving: Transfer | None = None
    """The saving that was begun when it last left."""
    saving: Transfer | None = None
    """The latest saving into its home."""


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
    """Pieces of memory by size."""

    def __init__(self) -> None:
        self._kept: dict[int, list[T]] = defaultdict(list)

    def keep(self, nbytes: int, piece: T) -> None:
        """Keep ``piece`` of ``nbytes``."""
        self._kept[nbytes].append(piece)

    def take(self, nbytes: int, ready: Callable[[T], bool] | None = None) -> T | None:
        """Return a piece of exactly ``nbytes``, or None: the newest, or the oldest that is ``ready``.

        Where none is ready, the oldest.
        """
        pieces = self._kept[nbytes]
        if not pieces or ready is None:
            return pieces.pop() if pieces else None
        return pieces.pop(next((i for i, each in enumerate(pieces) if ready(each)), 0))

    def part_with(self, nbytes: int) -> Iterator[tuple[int, T]]:
        """Give up pieces with their sizes, largest first, until ``nbytes`` or more are given up."""
        for size in sorted(self._kept, reverse=True):
            while self._kept[size] and nbytes > 0:
                nbytes -= size
                yield size, self._kept[size].pop()

    def clear(self) -> list[tuple[int, T]]:
        """Give up all."""
        pieces = [(size, each) for size, kept in self._kept.items() for each in kept]
        self._kept.clear()
        return pieces
