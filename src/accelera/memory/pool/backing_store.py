"""Blocks of the pool, the device memory in which residents lie, and the backing stores they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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
