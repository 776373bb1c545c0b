"""What the threads that work on a lease are at, written where it is found after their process died."""

from __future__ import annotations

import contextlib
import mmap
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Final, final

from accelera.execution.cluster.contract import Range

KEPT_S: Final = 86_400.0
"""Seconds that the file of a dead process waits for whoever asks."""
_MARK: Final = struct.Struct("<qq")


@final
class Marks:
    """One slot for each of ``count`` threads in a mapped file: writing takes no system call."""

    def __init__(self, lease: str, count: int) -> None:
        self._path = _path(lease)
        size = _MARK.size * count
        self._path.write_bytes(bytes(size))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._free = list(range(count))
        self._slots: dict[int, int] = {}

    def begin(self, start: int, stop: int) -> None:
        """Note that the calling thread is about to run the tasks from ``start`` up to ``stop``."""
        slot = self._slots[threading.get_ident()] = self._free.pop()
        _MARK.pack_into(self._map, slot * _MARK.size, start, stop)

    def end(self) -> None:
        """Note that the calling thread is done with them."""
        slot = self._slots.pop(threading.get_ident())
        _MARK.pack_into(self._map, slot * _MARK.size, 0, 0)
        self._free.append(slot)

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)


def read_marks(lease: str) -> list[Range]:
    """Return what was under way of a lease whose process is no more, and remove the file."""
    try:
        found = _path(lease).read_bytes()
    except FileNotFoundError:
        return []
    _path(lease).unlink()
    return [(start, stop) for start, stop in _MARK.iter_unpack(found) if start < stop]


def sweep_marks() -> None:
    """Remove what was left here by processes that nobody asked about, a day ago or longer."""
    for path in _path("").parent.glob(f"{_path('').name}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()


def _path(lease: str) -> Path:
    return Path(tempfile.gettempdir()) / f"accelera-lease-{lease}"
