"""Arrays in files behind URLs: a region is read by requests for its ranges, straight into the buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np

from accelera.errors import StoreChangedError, StoreError, StoreFormatError
from accelera.stores.contract import Layout, Store
from accelera.stores.dtypes import as_bytes_of
from accelera.stores.flatfile import Placement
from accelera.stores.regions import Region, axis_length, check_transfer
from accelera.stores.remotefile import RemoteFile
from accelera.stores.urls import Url

_RANGE_BYTES = 512 << 10
"""Largest range of one request."""
_BATCH_BYTES = 1 << 20
"""Bytes of the ranges that one thread requests concurrently."""
_BATCH_RANGES = 16
_GAP_BYTES = 4 << 10
"""Longest gap between runs of elements that is read and discarded: a request costs more than its bytes."""
_COPIES = 3
"""Copies of a batch in memory: packets, the joined answer, and answers that are complete."""


class _Range(NamedTuple):
    """Bytes of one request, and the part of the buffer that they fill."""

    start: int
    nbytes: int
    out: np.ndarray[Any, Any]
    strides: tuple[int, ...]
    """Bytes between neighbors along each axis of ``out`` in the file."""


@final
class RemoteStore(Store):
    """An array in a file that ``fsspec`` reads by ranges; nothing is cached, and nothing is written.

    Raises StoreFormatError when the file is too short.
    """

    tier = "disk"

    def __init__(self, file: RemoteFile, placement: Placement, *, header: int = 0) -> None:
        self.name = file.name
        self.placement = placement
        self.shape, self.dtype = placement.shape, placement.dtype
        self._header = header
        self._file: RemoteFile | None = file
        if file.size < placement.end:
            raise StoreFormatError(
                f"[open_store] {self.name} has {file.size} bytes, but {self.dtype}{list(self.shape)} at byte "
                f"{placement.offset} ends at {placement.end}; it is cut off, or its shape is wrong"
            )

    def _open(self, op: str) -> RemoteFile:
        if self._file is None:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._file

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Request the ranges of ``region`` and copy them into ``out``; return its bytes.

        Raises StoreError when a request fails or brings fewer bytes.
        """
        file = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        if out.size:
            for batch in _batches(self._ranges(region, as_bytes_of(out))):
                contents = file.read_ranges([(each.start, each.start + each.nbytes) for each in batch])
                for part, content in zip(batch, contents, strict=True):
                    np.copyto(part.out, np.ndarray(part.out.shape, part.out.dtype, content, 0, part.strides))
                del contents
        if self.placement.swapped:
            out.byteswap(inplace=True)
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Raise StoreError: URLs are read only."""
        self._open("write")
        raise StoreError(f"[write] {self.name} {self.read_only}")

    def _ranges(self, region: Region, out: np.ndarray[Any, Any]) -> Iterator[_Range]:
        """Yield the ranges of a region, with its axes in the order of the file."""
        steps = self.placement.strides
        start = self.placement.offset + sum(
            axis.start * step for axis, step in zip(region, steps, strict=True) if axis_length(axis)
        )
        strides = [step * (axis.step or 1) for axis, step in zip(region, steps, strict=True)]
        order = sorted(range(out.ndim), key=lambda axis: -strides[axis])
        return _cut(start, out.transpose(order), tuple(strides[axis] for axis in order))

    @property
    def read_only(self) -> str:
        """Reason that nothing can be written here."""
        return "is read by its URL; write to a path, or into an array"

    @property
    def layout(self) -> Layout:
        """The file's strides."""
        return Layout.of_strides(self.shape, self.placement.strides, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """Copies of the ranges that one thread requests concurrently."""
        return _COPIES * _BATCH_BYTES

    def require_current(self) -> None:
        """Raise StoreChangedError when the server has another version than when the file was opened."""
        file = self._open("require_current")
        if file.current_version() != (file.size, file.version):
            raise StoreChangedError(f"[read] {self.name} changed since it was opened; open it again")

    def fingerprint(self) -> Mapping[str, Any]:
        """Return size and version as the server states them, header checksum and placement: no URL in it."""
        size, version = self._open("fingerprint").current_version()
        return {
            "kind": "url",
            "size": size,
            "version": version,
            "header": self._header,
            "dtype": str(self.dtype),
            "shape": list(self.shape),
            "strides": list(self.placement.strides),
            "offset": self.placement.offset,
        }

    def __reduce__(self) -> Any:
        """Pickle as a URL to be opened again, in this or in another process."""
        file = self._open("pickle")
        return _open_sent, (file.url, self.placement, self._header, file.size, file.version)

    def close(self) -> None:
        """Release the file; connections belong to the file system, which other stores share."""
        self._file = None


def _open_sent(
    url: Url, placement: Placement, header: int, size: int, version: Mapping[str, str]
) -> RemoteStore:
    """Return the store of a URL that a pickled one names; raises StoreChangedError for another version."""
    file = RemoteFile(url)
    if (file.size, file.version) != (size, version):
        raise StoreChangedError(f"[unpickle] {file.name} is not the version that was sent; open it again")
    return RemoteStore(file, placement, header=header)


def _cut(start: int, out: np.ndarray[Any, Any], strides: tuple[int, ...]) -> Iterator[_Range]:
    """Yield ranges of at most 512 KiB whose gaps are short; ``strides`` descend."""
    while out.ndim and out.shape[0] == 1:
        out, strides = out[0, ...], strides[1:]
    if not out.ndim:
        yield _Range(start, out.itemsize, out, strides)
        return
    inner = _span(out[0, ...], strides[1:])
    if strides[0] - inner > _GAP_BYTES or inner > _RANGE_BYTES or _has_long_gaps(out[0, ...], strides[1:]):
        for index in range(out.shape[0]):
            yield from _cut(start + index * strides[0], out[index, ...], strides[1:])
        return
    rows = (_RANGE_BYTES - inner) // strides[0] + 1
    for first in range(0, out.shape[0], rows):
        part = out[first : first + rows]
        yield _Range(start + first * strides[0], _span(part, strides), part, strides)


def _span(out: np.ndarray[Any, Any], strides: tuple[int, ...]) -> int:
    """Return the bytes from the first to the last element."""
    distance: int = sum((size - 1) * stride for size, stride in zip(out.shape, strides, strict=True))
    return distance + out.itemsize


def _has_long_gaps(out: np.ndarray[Any, Any], strides: tuple[int, ...]) -> bool:
    """Return whether two neighboring runs are further apart than is worth reading."""
    return any(
        size > 1 and stride - _span(out[(0,) * (axis + 1) + (...,)], strides[axis + 1 :]) > _GAP_BYTES
        for axis, (size, stride) in enumerate(zip(out.shape, strides, strict=True))
    )


def _batches(ranges: Iterator[_Range]) -> Iterator[list[_Range]]:
    """Yield ranges that are requested concurrently: at most 16, of 1 MiB in all."""
    batch: list[_Range] = []
    for part in ranges:
        if batch and (
            len(batch) == _BATCH_RANGES or sum(each.nbytes for each in batch) + part.nbytes > _BATCH_BYTES
        ):
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch
