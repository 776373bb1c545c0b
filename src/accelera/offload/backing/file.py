"""Backing store in a file: regions of an open file, read past the page cache or mapped."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import final

import numpy as np

from accelera.errors import StoreError
from accelera.memory import Bytes
from accelera.stores import FlatFile, Placement


@final
class OpenFile:
    """All bytes of a file; takes over ``descriptor``."""

    def __init__(self, path: Path, descriptor: int, *, writable: bool = False) -> None:
        self.path = path
        self.nbytes = os.fstat(descriptor).st_size
        self.writable = writable
        self._descriptor = descriptor
        self._stamp = None if writable else _stamp(descriptor)
        self._close = weakref.finalize(self, os.close, descriptor)
        placement = Placement.dense((self.nbytes,), np.dtype(np.uint8))
        self._store = FlatFile(path, os.dup(descriptor), placement, writable=writable)

    @classmethod
    def existing(cls, path: str | Path) -> OpenFile:
        """Open a file for reading; raises StoreError when it cannot be."""
        try:
            return cls(Path(path), os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise StoreError(
                f"[offload] {path} cannot be opened: {error.strerror}; check where the checkpoint is"
            ) from error

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on.

        Raises StoreError when the file ends early, or was opened for reading and changed since.
        """
        self._check_unchanged()
        return self._store.read((slice(start, start + out.nbytes),), out)

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; raises StoreError when the disk is full."""
        return self._store.write((slice(start, start + data.nbytes),), data)

    def map(self, start: int, nbytes: int) -> Bytes:
        """Return bytes mapped privately: pages of the file until somebody writes to them."""
        self._check_unchanged()
        before = start % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            self._descriptor,
            max(before + nbytes, 1),
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=start - before,
        )
        mapped: Bytes = np.ndarray((nbytes,), np.uint8, pages, before)
        return mapped

    def close(self) -> None:
        """Close it; maps stay valid."""
        self._store.close()
        self._close()

    def _check_unchanged(self) -> None:
        if self._stamp is not None and _stamp(self._descriptor) != self._stamp:
            raise StoreError(
                f"[offload] {self.path} was truncated or changed after it was opened: the weights are "
                "in it; open the checkpoint again, and write a new file instead of changing this one"
            )


def _stamp(descriptor: int) -> tuple[int, int]:
    """Return the file's size and when its contents were last changed, in nanoseconds."""
    facts = os.fstat(descriptor)
    return facts.st_size, facts.st_mtime_ns


@final
class FileRegion:
    """``nbytes`` of an open file from byte ``offset``; transfers go around the page cache where they can.

    A region of a file that was opened for reading stays what it is; ``on_release`` takes back another.
    """

    def __init__(
        self,
        file: OpenFile,
        offset: int,
        nbytes: int,
        on_release: Callable[[FileRegion], None] | None = None,
    ) -> None:
        if offset < 0 or offset + nbytes > file.nbytes:
            raise StoreError(
                f"[offload] {file.path} has {file.nbytes} bytes; a region of {nbytes} at byte {offset} does "
                "not lie in it: the file is cut off, or its index is wrong"
            )
        self.file = file
        self.offset = offset
        self.nbytes = nbytes
        self._on_release = on_release

    @property
    def writable(self) -> bool:
        """Whether the file is open for writing."""
        return self.file.writable

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on; raises StoreError when the file ends early."""
        return self.file.read(self.offset + start, out)

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; raises StoreError for a read-only file or a full disk."""
        return self.file.write(self.offset + start, data)

    def resident(self) -> None:
        """They lie in a file."""

    def mapped(self) -> Bytes:
        """Return the region mapped privately: pages of the file until somebody writes to them."""
        return self.file.map(self.offset, self.nbytes)

    def release(self) -> None:
        """Give the region back to its store."""
        if self._on_release is not None:
            self._on_release(self)
