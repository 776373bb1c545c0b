"""What tells whether an operand is still what it was when an interrupted run began."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from accelera.engine.staging import PIECE_BYTES, boxes_within
from accelera.stores import Store


def fingerprint(store: Store) -> Mapping[str, Any]:
    """Return the store's own identity; for one without (memory), a checksum of all its elements."""
    own = store.fingerprint()
    return {"kind": "contents", "crc32": _checksum(store)} if own is None else own


def _checksum(store: Store) -> int:
    """Read everything in C order, whatever the layout, through one small buffer."""
    buffer = np.empty(PIECE_BYTES, np.uint8)
    item = store.dtype.itemsize
    checksum = 0
    for box in boxes_within([(0, size) for size in store.shape], range(store.ndim), PIECE_BYTES // item):
        shape = [stop - start for start, stop in box]
        used = buffer[: int(np.prod(shape, dtype=np.int64)) * item]
        store.read(tuple(slice(start, stop) for start, stop in box), used.view(store.dtype).reshape(shape))
        checksum = zlib.crc32(used.data, checksum)
    return checksum
