"""What a home must do: hold the bytes of one block, and give and take pieces of them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

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
