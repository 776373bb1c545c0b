"""Base of stores whose elements come in chunks: a transfer takes the memory of a few of them."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from accelera.errors import OutOfMemoryError, StoreError, StoreFormatError
from accelera.memory._internal import trim_heap
from accelera.stores.contract import Layout, Store
from accelera.stores.dtypes import parse_dtype
from accelera.stores.regions import Borders, Region, check_transfer, parts, piece_shape, view_key, whole

COPIES = 3
"""Of a chunk, in memory: encoded bytes, decoded chunk, and the chunk being assembled for a write."""
PIECE_BYTES = 4 << 20
"""Size of the pieces in which an array without chunks is moved."""
_LARGE_BYTES = 1 << 20
"""Least chunk after which freed memory is returned: that takes a tenth of the time of decoding it."""


class ChunkedStore(Store):
    """An array of another library, moved chunk by chunk.

    Subclasses move one chunk, or a part of one, in ``_fetch`` and ``_put``.
    """

    tier = "disk"
    fault = "the array is damaged"
    """Why a read fails, for messages."""
    copies = COPIES
    """Most chunks that one transfer has in memory."""
    transfer_chunk: tuple[int, ...]
    """Extent of the largest part that is moved at once when reading."""

    def __init__(self, array: Any, name: str, chunk: Sequence[int] | None, *, writable: bool = False) -> None:
        self.name = name
        self.shape = tuple(int(size) for size in array.shape)
        self.dtype = parse_dtype(array.dtype, op=f"open_store {name}")
        self.transfer_chunk = (
            tuple(map(int, chunk)) if chunk else piece_shape(self.shape, self.dtype.itemsize, PIECE_BYTES)
        )
        if min(self.transfer_chunk, default=1) < 1 <= math.prod(self.shape):
            raise StoreFormatError(
                f"[open_store] {name} has chunks of {self.transfer_chunk}, expected lengths of at least "
                "1; write the array again"
            )
        self._chunk = None if chunk is None else self.transfer_chunk
        self._array: Any = array
        self._writable = writable

    @abc.abstractmethod
    def _fetch(self, array: Any, part: Region, out: np.ndarray[Any, Any]) -> None:
        """Copy ``part`` of the library's array, which lies in one chunk, into ``out``."""

    def _put(self, array: Any, part: Region, data: np.ndarray[Any, Any]) -> None:
        """Copy ``data`` into ``part`` of the library's array, which lies in one chunk."""
        raise NotImplementedError

    def _open(self, op: str) -> Any:
        if self._array is None:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._array

    def _out_of_memory(self, op: str, part: Region) -> OutOfMemoryError:
        """Return the error of a chunk for which the process has no memory."""
        return OutOfMemoryError(
            f"[{op}] {self.name} at {part}: no memory for the chunk; end other work, or use smaller chunks"
        )

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy the chunks under ``region`` into ``out``; return its bytes.

        Raises StoreError when a chunk cannot be read or decoded, OutOfMemoryError when there is no memory
        for it.
        """
        array = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        for part, place in parts(region, self._borders()):
            try:
                self._fetch(array, part, out[view_key(place)])
            except MemoryError as error:
                raise self._out_of_memory("read", part) from error
            except Exception as error:  # whatever the library, a codec or the filesystem raises
                raise StoreError(f"[read] {self.name} at {part}: {error}; {self.fault}") from error
            self._give_back()
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` into the chunks under ``region``; return its bytes.

        Raises StoreError when the array is open for reading only, or a chunk cannot be written,
        OutOfMemoryError when there is no memory for it.
        """
        array = self._open("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        if self.read_only is not None:
            raise StoreError(f"[write] {self.name} {self.read_only}")
        for part, place in parts(region, self._write_borders()):
            try:
                self._put(array, part, data[view_key(place)])
            except MemoryError as error:
                raise self._out_of_memory("write", part) from error
            except Exception as error:  # whatever the library, a codec or the filesystem raises
                raise StoreError(f"[write] {self.name} at {part}: {error}; check the disk") from error
            self._give_back()
        return data.nbytes

    def _give_back(self) -> None:
        """Return memory that the library freed to the system: else threads' heaps keep a chunk's buffers."""
        if math.prod(self.transfer_chunk) * self.dtype.itemsize >= _LARGE_BYTES:
            trim_heap()

    def _borders(self) -> Borders:
        """Return the chunk lengths along each axis: one length for all, or each length in turn."""
        return self.transfer_chunk

    def _write_borders(self) -> Borders:
        """Return the same for the parts that are written at once."""
        return self._borders()

    def _pieces(self) -> Iterator[Region]:
        """Yield the chunks: each is read once."""
        return (part for part, _ in parts(whole(self.shape), self._borders()))

    @property
    def layout(self) -> Layout:
        """Chunks; inside a chunk the last axis is the fastest."""
        self._open("layout")
        return Layout(tuple(range(len(self.shape))), self.dtype.itemsize, self._chunk)

    @property
    def scratch_bytes(self) -> int:
        """The encoded and decoded copies of one chunk."""
        return self.copies * math.prod(self.transfer_chunk) * self.dtype.itemsize

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written here; None where ``write`` works."""
        return None if self._writable else "is open for reading; open it for writing, or name a new file"

    def close(self) -> None:
        """Let go of the array."""
        self._array = None

    def __reduce__(self) -> Any:
        """Pickle as something to be opened again; raises StoreError where that is not possible."""
        self._open("pickle")
        raise StoreError(
            f"[pickle] {self.name} is open for writing, or in memory only; send the path of its file"
        )
