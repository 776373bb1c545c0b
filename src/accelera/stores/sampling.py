"""Samples of files and Zarr arrays: a few kilobytes that tell one from another of the same name."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

SPOTS: Final = 16
SPOT_BYTES: Final = 4096


def sample_of_file(path: Path) -> int:
    """Return a checksum of a file's size and of bytes spread evenly over it, both ends included.

    Raises ``OSError`` when it cannot be read.
    """
    checksum = 0
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, 2)
        checksum = zlib.crc32(str(size).encode())
        for start in _spread(max(0, size - SPOT_BYTES) + 1):
            file.seek(start)
            checksum = zlib.crc32(file.read(SPOT_BYTES), checksum)
    return checksum


def sample_of_descriptor(descriptor: int, first: int, stop: int) -> int:
    """Return a checksum of bytes spread evenly over an open file from ``first`` to ``stop``.

    Raises ``OSError`` when they cannot be read.
    """
    checksum = 0
    for start in _spread(max(0, stop - first - SPOT_BYTES) + 1):
        count = min(SPOT_BYTES, stop - first - start)
        checksum = zlib.crc32(os.pread(descriptor, count, first + start), checksum)
    return checksum


def sample_of_zarr(path: Path, array: Any, metadata: bytes) -> int:
    """Return a checksum of the metadata and of some chunk files, samples of them, spread over the ``array``.

    Raises ``OSError`` when one cannot be read.
    """
    granule = array.shards or array.chunks
    grid = [math.ceil(size / step) for size, step in zip(array.shape, granule, strict=True)]
    checksum = zlib.crc32(metadata)
    for number in _spread(math.prod(grid)):
        file = path / array.metadata.encode_chunk_key(_place(number, grid))
        found = sample_of_file(file) if file.is_file() else None
        checksum = zlib.crc32(str(found).encode(), checksum)
    return checksum


def _spread(count: int) -> Iterator[int]:
    """Yield up to ``SPOTS`` numbers below ``count``, the first and the last among them, each once."""
    spots = min(SPOTS, count)
    numbers = (spot * (count - 1) // max(spots - 1, 1) for spot in range(spots))
    yield from (number for number, _ in itertools.groupby(numbers))


def _place(number: int, grid: list[int]) -> tuple[int, ...]:
    """Return the position in a grid of which ``number`` positions come before it."""
    place = []
    for size in reversed(grid):
        number, here = divmod(number, size)
        place.append(here)
    return tuple(reversed(place))
