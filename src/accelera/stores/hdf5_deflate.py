"""HDF5 chunks compressed with gzip, decoded within the size of their chunk shape.

The library enlarges its buffer until a stream ends, so that a chunk of a few kilobytes can take gigabytes.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from accelera.stores.bounded_decoding import DecodedSizeError, decode_within
from accelera.stores.regions import Region

_SHUFFLE: Final = 2
_DEFLATE: Final = 1
"""Numbers of filters, as the HDF5 file format specifies them."""
_FLETCHER32_BYTES: Final = 4
_OVERHEAD_BYTES: Final = 64 << 10


def read_deflated(dataset: Any, part: Region) -> np.ndarray[Any, Any] | None:
    """Return ``part`` of a dataset, which must be stored in one chunk; None where the library must read it.

    The library reads chunks that are absent, not compressed with gzip, or filtered in another way.
    Raises DecodedSizeError for a chunk that would decode to more bytes than its shape takes.
    """
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    if _DEFLATE not in filters or not part:
        return None
    origin = tuple(along.start // size * size for along, size in zip(part, dataset.chunks, strict=True))
    stored = dataset.id.get_chunk_info_by_coord(origin)
    if stored.byte_offset is None:
        return None
    nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if stored.size > 2 * nbytes + _OVERHEAD_BYTES:
        raise DecodedSizeError(f"a chunk of {stored.size} bytes, where {nbytes} are decoded")
    mask, data = dataset.id.read_direct_chunk(origin)
    decoded = decode_within("zlib", memoryview(data), nbytes + _FLETCHER32_BYTES) if mask == 0 else None
    if decoded is None or filters not in ([_DEFLATE], [_SHUFFLE, _DEFLATE]) or len(decoded) != nbytes:
        return None
    return _elements(dataset, decoded, shuffled=_SHUFFLE in filters)[_within(part, origin)]


def _elements(dataset: Any, decoded: bytes, *, shuffled: bool) -> np.ndarray[Any, Any]:
    flat = np.frombuffer(decoded, np.uint8)
    if shuffled:
        flat = np.ascontiguousarray(flat.reshape(dataset.dtype.itemsize, -1).T)
    return flat.reshape(-1).view(dataset.dtype).reshape(dataset.chunks)


def _within(part: Region, origin: tuple[int, ...]) -> Region:
    return tuple(
        slice(along.start - first, along.stop - first, along.step)
        for along, first in zip(part, origin, strict=True)
    )
