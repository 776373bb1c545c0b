"""HDF5 chunks compressed with gzip, decoded within the size of their chunk shape.

The library enlarges its buffer until a stream ends, so that a chunk of a few kilobytes can take gigabytes.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

import numpy as np

from accelera.errors import StoreFormatError
from accelera.stores.bounded_decoding import DecodedSizeError, decode_within
from accelera.stores.regions import Region

_DEFLATE: Final = 1
_SHUFFLE: Final = 2
_FLETCHER32: Final = 3
"""Numbers of filters, as the HDF5 file format specifies them."""
_CHECKSUM_BYTES: Final = 4
_OVERHEAD_BYTES: Final = 64 << 10


def require_sound_index(dataset: Any) -> None:
    """Raise StoreFormatError unless each chunk is inside the array and the file, and long enough.

    The library trusts the index: it subtracts the length of the checksum from that of the chunk without
    comparing them, and then reads beyond its buffer. Every entry is checked, because its search of a damaged
    index finds other entries than a lookup by coordinates. It takes some microseconds per chunk.
    """
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    all_skipped = (1 << len(filters)) - 1
    filtered_bytes = 1 + _CHECKSUM_BYTES * filters.count(_FLETCHER32)
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    file_bytes, shape = dataset.file.id.get_filesize(), dataset.shape

    def check(stored: Any) -> None:
        place = stored.chunk_offset
        if not all(map(operator.lt, place, shape)):
            raise _damaged(dataset, f"a chunk at {place}, expected a place in {shape}")
        min_bytes = chunk_bytes if stored.filter_mask & all_skipped == all_skipped else filtered_bytes
        if stored.size < min_bytes or stored.byte_offset + stored.size > file_bytes:
            raise _damaged(
                dataset,
                f"a chunk of {stored.size} bytes at byte {stored.byte_offset}, expected at least {min_bytes} "
                f"bytes in a file of {file_bytes}",
            )

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(check)


def _damaged(dataset: Any, problem: str) -> StoreFormatError:
    return StoreFormatError(f"[read] the index of {dataset.name} has {problem}; write the file again")


def _origin(dataset: Any, part: Region) -> tuple[int, ...]:
    return tuple(along.start // size * size for along, size in zip(part, dataset.chunks, strict=True))


def read_deflated(dataset: Any, part: Region) -> np.ndarray[Any, Any] | None:
    """Return ``part`` of a dataset, which must be stored in one chunk; None where the library must read it.

    The library reads chunks that are absent, not compressed with gzip, or filtered in another way.
    Raises DecodedSizeError for a chunk that would decode to more bytes than its shape takes.
    """
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    has_checksum = filters[-1:] == [_FLETCHER32]
    pipeline = filters[:-1] if has_checksum else filters
    if pipeline not in ([_DEFLATE], [_SHUFFLE, _DEFLATE]) or not part:
        return None
    origin = _origin(dataset, part)
    stored = dataset.id.get_chunk_info_by_coord(origin)
    if stored.byte_offset is None or stored.filter_mask:
        return None
    nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if stored.size > 2 * nbytes + _OVERHEAD_BYTES:
        raise DecodedSizeError(f"a chunk of {stored.size} bytes, where {nbytes} are decoded")
    data = memoryview(dataset.id.read_direct_chunk(origin)[1])
    decoded = decode_within("zlib", data[:-_CHECKSUM_BYTES] if has_checksum else data, nbytes)
    if decoded is None or has_checksum or len(decoded) != nbytes:
        return None  # the library verifies checksums, and reports damage
    return _elements(dataset, decoded, shuffled=_SHUFFLE in pipeline)[_within(part, origin)]


def _elements(dataset: Any, decoded: bytes, *, shuffled: bool) -> np.ndarray[Any, Any]:
    flat = np.frombuffer(decoded, np.uint8)
    if shuffled:
        flat = np.ascontiguousarray(flat.reshape(dataset.dtype.itemsize, -1).T)
    elements: np.ndarray[Any, Any] = flat.reshape(-1).view(dataset.dtype).reshape(dataset.chunks)
    return elements


def _within(part: Region, origin: tuple[int, ...]) -> Region:
    return tuple(
        slice(along.start - first, along.stop - first, along.step)
        for along, first in zip(part, origin, strict=True)
    )
