"""Writable space in a folder: files without a name, which vanish with the process."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import final

from accelera.errors import StoreError
from accelera.offload.homes.file import FileHome
from accelera.offload.homes.open_file import OpenFile
from accelera.units import format_bytes

FILE_BYTES = 1 << 30
"""Least size of one scratch file; it is sparse, so what is not written takes no room."""
ALIGNMENT_BYTES = 4096


@final
class ScratchHomes:
    """Regions of scratch files in ``folder``, reused by size; safe to use from several threads."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._files: list[OpenFile] = []
        self._used_bytes = 0
        self._spare: dict[int, list[FileHome]] = defaultdict(list)
        self._lock = threading.RLock()
        """The garbage collector may give a region back while this thread takes one."""

    def create(self, nbytes: int, on_release: Callable[[], None] | None = None) -> FileHome:
        """Return a region of ``nbytes``; raises StoreError when the folder takes no files."""
        with self._lock:
            take_back = functools.partial(self._take_back, on_release)
            if self._spare[nbytes]:
                spare = self._spare[nbytes].pop()
                return FileHome(spare.file, spare.offset, nbytes, take_back)
            room = -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if not self._files or self._used_bytes + room > self._files[-1].nbytes:
                self._files.append(_nameless_file(self.folder, max(FILE_BYTES, room)))
                self._used_bytes = 0
            home = FileHome(self._files[-1], self._used_bytes, nbytes, take_back)
            self._used_bytes += room
            return home

    def close(self) -> None:
        """Close the files, and with that delete them."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._spare.clear()

    def _take_back(self, on_release: Callable[[], None] | None, home: FileHome) -> None:
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
