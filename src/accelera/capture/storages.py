"""Storages seen while recording: number, name, role, and the moment each dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

NOTHING = -1
"""Number of a storage of no bytes: it is left out."""


class _StorageRef(weakref.ref[Any]):
    """A weak reference that knows which buffer it stands for."""

    __slots__ = ("buffer", "key", "nbytes")

    buffer: int
    key: int
    nbytes: int


class Storages:
    """Numbers storages from 0 and tells when each dies.

    Views share their storage, hence their number. A storage that is resized gets a new number, since a
    buffer of a trace keeps its size. Nothing is kept alive.

    Parameters
    ----------
    on_death
        Called with a buffer's number when its storage is given back.
    """

    def __init__(self, on_death: Callable[[int], None]) -> None:
        self._on_death = on_death
        self._watches: dict[int, _StorageRef] = {}
        self.sizes_bytes: list[int] = []
        self.dtypes: list[str] = []
        self.names: list[str] = []
        self.roles: list[str] = []

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of the storage under ``tensor``, a new one when it was not seen before."""
        storage = tensor.untyped_storage()
        watch = self._watches.get(storage._cdata)
        nbytes = storage.nbytes()
        if watch is not None:
            if watch.nbytes == nbytes:
                return watch.buffer
            self._forget(watch)
        if not nbytes:
            return NOTHING
        return self._watch(storage, nbytes, tensor.dtype)

    def describe(self, tensor: torch.Tensor, name: str, role: str) -> None:
        """Say what the storage under ``tensor`` is."""
        buffer = self.number(tensor)
        if buffer != NOTHING:
            self.names[buffer] = name
            self.roles[buffer] = role

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return the name of the storage under ``tensor``; ``""`` when it has none."""
        buffer = self.number(tensor)
        return "" if buffer == NOTHING else self.names[buffer]

    def role_of(self, tensor: torch.Tensor) -> str:
        """Return the role of the storage under ``tensor``; ``""`` when it is not known."""
        buffer = self.number(tensor)
        return "" if buffer == NOTHING else self.roles[buffer]

    def rename(self, buffer: int, other: int) -> None:
        """Let the storage of ``buffer``, one of the last that were seen, stand for ``other``."""
        for watch in reversed(self._watches.values()):
            if watch.buffer == buffer:
                watch.buffer = other
                return

    def close(self) -> None:
        """Watch no more: later deaths are not reported."""
        self._watches.clear()

    def add(self, nbytes: int, dtype: str) -> int:
        """Return the number of a new buffer that no tensor shows."""
        self.sizes_bytes.append(nbytes)
        self.dtypes.append(dtype)
        self.names.append("")
        self.roles.append("")
        return len(self.sizes_bytes) - 1

    def _watch(self, storage: Any, nbytes: int, dtype: torch.dtype) -> int:
        watch = _StorageRef(storage, self._forget)
        watch.key, watch.nbytes = storage._cdata, nbytes
        watch.buffer = self.add(nbytes, str(dtype).removeprefix("torch."))
        self._watches[watch.key] = watch
        return watch.buffer

    def _forget(self, watch: _StorageRef) -> None:
        if self._watches.get(watch.key) is watch:
            del self._watches[watch.key]
            self._on_death(watch.buffer)
