"""What tells whether an operand is still what it was when a run, this one or an interrupted one, began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelera.errors import StoreChangedError
from accelera.stores import Store


@dataclass(frozen=True)
class OperandWatch:
    """Operands that must stay as they are while they are read."""

    stores: Mapping[str, Store]
    """By the names that messages give them."""
    prints: Mapping[str, Any]
    """What tells each from what it may become; None where nothing does."""
    written_inode: int | None = None
    """The file that the result goes to while they are read, when it is there already."""

    @classmethod
    def over(cls, stores: Mapping[str, Store], *, arrays: bool, written: Store | None = None) -> OperandWatch:
        """Return a watch that begins now; with ``arrays`` it knows the contents of arrays in memory, too.

        ``written`` takes the result: operands elsewhere in its file are told apart by their bytes alone.
        """
        inode = None if written is None else _inode(written)
        return cls(stores, fingerprints(stores, arrays=arrays, written_inode=inode), inode)

    def require_unchanged(self, op: str) -> None:
        """Raise StoreChangedError when a file that was read is not what it was when the watch began.

        Files and Zarr arrays are looked at, whatever view of them was read. Arrays in memory are not: who
        holds them must leave them alone while they are read.
        """
        for name, store in self.stores.items():
            now = _of_file(store, self.written_inode)
            if now is not None and now != self.prints[name]:
                raise StoreChangedError(
                    f"[{op}] operand {name} ({store.name}) was overwritten while it was read "
                    f"({differences(self.prints[name], now)}): the result would be of neither its old nor "
                    f"its new contents, so it is thrown away; run again when nobody writes to it"
                )


def fingerprints(
    stores: Mapping[str, Store], *, arrays: bool, written_inode: int | None = None
) -> dict[str, Any]:
    """Return each store's own identity with a sample of its contents.

    For one without an identity (memory) a checksum of all its elements, or with ``arrays=False`` None.
    """
    found: dict[str, Any] = {name: _of_file(store, written_inode) for name, store in stores.items()}
    if arrays:
        lost = [name for name, each in found.items() if each is None]
        found |= {name: {"kind": "contents", "crc32": stores[name].checksum()} for name in lost}
    return found


def _of_file(store: Store, written_inode: int | None) -> Mapping[str, Any] | None:
    own = store.fingerprint()
    if own is None:
        return None
    found = {**own, "sample": store.sample()}
    is_written = written_inode is not None and any(_inode(each) == written_inode for each in store.sources)
    return _without_times(found) if is_written else found


def _inode(store: Store) -> int | None:
    own = store.fingerprint()
    return None if own is None else own.get("inode")


def _without_times(found: Any) -> Any:
    """Return a fingerprint without the times at which its files were changed."""
    if isinstance(found, Mapping):
        return {name: _without_times(each) for name, each in found.items() if name != "mtime_ns"}
    return [_without_times(each) for each in found] if isinstance(found, list) else found


def differences(then: Any, now: Any) -> str:
    """Return which parts of a fingerprint differ, in words."""
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return f"it was {then}, now {now}"
    parts = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    return ", ".join(f"{key} was {then.get(key)}, now {now.get(key)}" for key in parts)
