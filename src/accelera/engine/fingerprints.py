"""What tells whether an operand is still what it was when a run, this one or an interrupted one, began."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from accelera.engine.staging import PIECE_BYTES, boxes_within
from accelera.errors import StoreChangedError
from accelera.stores import Store


def fingerprints(stores: Mapping[str, Store], *, arrays: bool) -> dict[str, Any]:
    """Return each store's own identity with a sample of its contents.

    For one without an identity (memory) a checksum of all its elements, or with ``arrays=False`` None.
    """
    found: dict[str, Any] = {name: _of_file(store) for name, store in stores.items()}
    if arrays:
        lost = [name for name, each in found.items() if each is None]
        found |= {name: {"kind": "contents", "crc32": _checksum(stores[name])} for name in lost}
    return found


def _of_file(store: Store) -> Mapping[str, Any] | None:
    own = store.fingerprint()
    return None if own is None else {**own, "sample": store.sample()}


def require_unchanged(op: str, stores: Mapping[str, Store], before: Mapping[str, Any]) -> None:
    """Raise StoreChangedError when a file that was read is not what its fingerprint ``before`` says.

    Files and Zarr arrays are looked at, whatever view of them was read. Arrays in memory are not: who holds
    them must leave them alone while they are read.
    """
    for name, store in stores.items():
        now = _of_file(store)
        if now is not None and now != before[name]:
            raise StoreChangedError(
                f"[{op}] operand {name} ({store.name}) was overwritten while it was read "
                f"({differences(before[name], now)}): the result would be of neither its old nor its new "
                f"contents, so it is thrown away; run again when nobody writes to it"
            )


def differences(then: Any, now: Any) -> str:
    """Return which parts of a fingerprint differ, in words."""
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return f"it was {then}, now {now}"
    parts = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    return ", ".join(f"{key} was {then.get(key)}, now {now.get(key)}" for key in parts)


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
