"""What a store must do: hold one array's bytes and move regions of it in and out.

A *region* is one slice per axis with ``0 <= start <= stop <= size`` and a positive step.
Every byte count returned is the logical payload (elements moved times item size): that is what a
plan predicts and what a report adds up.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Region = tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """How an array lies in its store, as far as a cost model needs to know."""

    order: tuple[int, ...]
    """Axes from the slowest varying to the fastest varying."""
    itemsize: int
    """Bytes between two neighbours along the fastest axis when it is dense (the item size)."""
    chunk: tuple[int, ...] | None = None
    """Chunk shape of a chunked store (Zarr); None for a flat one."""
    dense: bool = True
    """False when even neighbours along the fastest axis are not adjacent (a strided view)."""


class Store(abc.ABC):
    """An n-dimensional array somewhere: RAM, an accelerator, a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tier: str
    """``"disk"``, ``"ram"`` or the name of the torch device that holds it (``"cuda:0"``)."""
    name: str
    """How messages and reports call it: its path, or ``"array"``."""

    @abc.abstractmethod
    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Fill ``out`` (the region's shape, the store's dtype, any strides); return bytes read."""

    @abc.abstractmethod
    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Store ``data`` (the region's shape, the store's dtype, any strides); return bytes written."""

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """How the bytes lie."""

    def resident(self) -> np.ndarray[Any, Any] | None:
        """Return the whole array without copying when it already lies in host RAM, else None."""
        return None

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return a JSON-able identity that changes when the contents may have (None: cannot say)."""
        return None

    def flush(self) -> None:
        """Make everything written so far durable."""

    def close(self) -> None:
        """Release handles; reading or writing afterwards is an error."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Logical size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class OutputStore(Store):
    """A store being written; its contents appear under their name only on ``commit``."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Make the result durable and visible under its final name, at once (atomic rename)."""

    @abc.abstractmethod
    def abort(self, *, keep_partial: bool = False) -> None:
        """Give up: remove the partial file, or keep it for a later ``resume``."""
