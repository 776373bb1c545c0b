"""Backing store in scratch files, which vanish with the process; or in RAM first, up to a limit."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from accelera.errors import StoreError
from accelera.offload.backing.file import FileRegion, OpenFile
from accelera.offload.backing.ram import RamBacking, RamRegion
from accelera.units import format_bytes

FILE_BYTES = 1 << 30
"""Least size of one scratch file; it is sparse, so what is not written takes no room."""

ALIGNMENT_BYTES = 4096


@final
class ScratchBacking:
    """Regions of scratch files in ``folder``, reused by size; safe to use from several threads."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._files: list[OpenFile] = []
        self._used_bytes = 0
        self._spare: dict[int, list[FileRegion]] = defaultdict(list)
        self._lock = threading.RLock()
        """The garbage collector may give a region back while this thread takes one."""

    def create(self, nbytes: int, on_release: Callable[[], None] | None = None) -> FileRegion:
        """Return a region of ``nbytes``; raises StoreError when the folder takes no files."""
        with self._lock:
            take_back = functools.partial(self._take_back, on_release)
            if self._spare[nbytes]:
                spare = self._spare[nbytes].pop()
                return FileRegion(spare.file, spare.offset, nbytes, take_back)
            room = -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if not self._files or self._used_bytes + room > self._files[-1].nbytes:
                self._files.append(_nameless_file(self.folder, max(FILE_BYTES, room)))
                self._used_bytes = 0
            home = FileRegion(self._files[-1], self._used_bytes, nbytes, take_back)
            self._used_bytes += room
            return home

    def close(self) -> None:
        """Close the files, and with that delete them."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._spare.clear()

    def _take_back(self, on_release: Callable[[], None] | None, home: FileRegion) -> None:
        with self._lock:
            self._spare[home.nbytes].append(home)
        if on_release is not None:
            on_release()


def _nameless_file(folder: Path, nbytes: int) -> OpenFile:
    try:
        descriptor, name = tempfile.mkstemp(prefix=".accelera-offload-", dir=folder)
        try:
            os.unlink(name)
            os.ftruncate(descriptor, nbytes)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise StoreError(
            f"[offload] no scratch file of {format_bytes(nbytes)} in {folder}: {error.strerror}; name "
            "another folder with store="
        ) from error
    return OpenFile(folder / "scratch", descriptor, writable=True)


@final
class TieredBacking:
    """RAM for what is created first, as long as it is at most ``ram_limit_bytes``; files for the rest.

    A home stays where it is: a pass uses all blocks in turn, so none of them deserves the RAM more than
    another. What is given back is there for those that are created later. Safe to use from several threads.
    """

    def __init__(self, ram: RamBacking, files: ScratchBacking, ram_limit_bytes: int) -> None:
        self.ram_limit_bytes = ram_limit_bytes
        self._ram = ram
        self._files = files
        self._bytes = {"ram": 0, "files": 0}
        self._lock = threading.RLock()
        """The garbage collector may give a home back while this thread takes one."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes of the backing stores that there are, in ``"ram"`` and in ``"files"``."""
        with self._lock:
            return dict(self._bytes)

    def create(self, nbytes: int) -> RamRegion | FileRegion:
        """Return a home of ``nbytes``; raises DeviceMemoryError, StoreError when there is no room for it."""
        tier = self._reserved(nbytes)
        try:
            backing = self._ram if tier == "ram" else self._files
            return backing.create(nbytes, lambda: self._count(tier, -nbytes))
        except BaseException:
            self._count(tier, -nbytes)
            raise

    def close(self) -> None:
        """Give up every home made here."""
        self._ram.close()
        self._files.close()

    def _reserved(self, nbytes: int) -> str:
        with self._lock:
            tier = "ram" if self._bytes["ram"] + nbytes <= self.ram_limit_bytes else "files"
            self._count(tier, nbytes)
        return tier

    def _count(self, tier: str, nbytes: int) -> None:
        with self._lock:
            self._bytes[tier] += nbytes
