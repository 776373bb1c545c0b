"""Base of stores whose elements come in chunks: a transfer takes the memory of a few of them."""

from __future__ import annotations

import abc
import ctypes
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from accelera.errors import StoreError
from accelera.stores.contract import Layout, Store
from accelera.stores.dtypes import as_bytes_of, parse_dtype
from accelera.stores.regions import Region, check_transfer, region_shape, view_key, whole

COPIES = 3
"""Of a chunk, in memory: encoded bytes, decoded chunk, and the chunk being assembled for a write."""
PIECE_BYTES = 4 << 20
"""Size of the pieces in which an array without chunks is moved."""


_LARGE_BYTES = 1 << 20
"""Chunks from this size on are worth giving back: it takes a tenth of the time of decoding them."""
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


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
            tuple(map(int, chunk)) if chunk else piece_shape(self.shape, self.dtype.itemsize)
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

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy the chunks under ``region`` into ``out``; return its bytes.

        Raises StoreError when a chunk cannot be read or decoded.
        """
        array = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        for part, place in parts(region, self._borders()):
            try:
                self._fetch(array, part, out[view_key(place)])
            except Exception as error:  # whatever the library, a codec or the filesystem raises
                raise StoreError(f"[read] {self.name} at {part}: {error}; {self.fault}") from error
            self._give_back()
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` into the chunks under ``region``; return its bytes.

        Raises StoreError when the array is open for reading only, or a chunk cannot be written.
        """
        array = self._open("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        if self.read_only is not None:
            raise StoreError(f"[write] {self.name} {self.read_only}")
        for part, place in parts(region, self._write_borders()):
            try:
                self._put(array, part, data[view_key(place)])
            except Exception as error:  # whatever the library, a codec or the filesystem raises
                raise StoreError(f"[write] {self.name} at {part}: {error}; check the disk") from error
            self._give_back()
        return data.nbytes

    def _give_back(self) -> None:
        """Return what the library freed to the system: threads' heaps keep buffers of a chunk otherwise."""
        if _malloc_trim is not None and math.prod(self.transfer_chunk) * self.dtype.itemsize >= _LARGE_BYTES:
            _malloc_trim(0)

    def _borders(self) -> Borders:
        """Return where chunks end along each axis: one length, or every length in turn."""
        return self.transfer_chunk

    def _write_borders(self) -> Borders:
        """Return the same for what is written at once."""
        return self._borders()

    def fingerprint(self) -> Mapping[str, Any]:
        """Return a checksum of all elements, each chunk read once; subclasses that can say it sooner do."""
        checksum = 0
        for part, _ in parts(whole(self.shape), self._borders()):
            piece = np.empty(region_shape(part), self.dtype)
            self.read(part, piece)
            checksum = zlib.crc32(as_bytes_of(piece).data, checksum)
        return {"kind": "chunks", "dtype": str(self.dtype), "shape": list(self.shape), "crc32": checksum}

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


Borders = Sequence[int | Sequence[int]]
"""For each axis the length of all chunks, or the lengths of all of them in order."""


def parts(region: Region, borders: Borders) -> Iterator[tuple[Region, Region]]:
    """Cut a region along chunk borders: pairs of the part, and its place in the region's buffer."""
    axes = [list(_cuts(part, sizes)) for part, sizes in zip(region, borders, strict=True)]
    for cuts in itertools.product(*axes):
        yield tuple(cut[0] for cut in cuts), tuple(cut[1] for cut in cuts)


def _cuts(part: slice, sizes: int | Sequence[int]) -> Iterator[tuple[slice, slice]]:
    indices = range(part.start, part.stop, part.step or 1)
    ends = None if isinstance(sizes, int) else iter(itertools.accumulate(sizes))
    done = border = 0
    while done < len(indices):
        if isinstance(sizes, int):
            border = (indices[done] // sizes + 1) * sizes
        while ends is not None and border <= indices[done]:
            border = next(ends)
        here = indices[done:][: -(-(border - indices[done]) // indices.step)]
        yield slice(here[0], here[-1] + 1, indices.step), slice(done, done + len(here))
        done += len(here)


def piece_shape(shape: tuple[int, ...], itemsize: int, most_bytes: int = PIECE_BYTES) -> tuple[int, ...]:
    """Return the shape of pieces of at most ``most_bytes``: whole rows, or parts of one.

    >>> piece_shape((100, 1000, 10), 8, 160_000)
    (2, 1000, 10)
    """
    piece = [max(1, size) for size in shape]
    for axis in range(len(piece)):
        rest = math.prod(piece[axis + 1 :]) * itemsize
        piece[axis] = min(piece[axis], max(1, most_bytes // rest))
        if rest <= most_bytes:
            break
    return tuple(piece)
