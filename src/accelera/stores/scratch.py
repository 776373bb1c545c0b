"""Folders for temporary files that must not take RAM: a tmpfs keeps its files in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})


def disk_folder(*candidates: Path) -> Path | None:
    """Return the first writable candidate on a disk, else a temporary folder on one; None without any.

    ``/var/tmp`` is on a disk on most systems whose ``/tmp`` is a tmpfs.
    """
    for folder in (*candidates, *_temporary_folders()):
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and not is_in_memory(folder):
            return folder
    return None


def _temporary_folders() -> Iterable[Path]:
    return Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()


def is_in_memory(folder: Path) -> bool:
    """Return whether files in ``folder`` are stored in RAM."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    place, kind, deepest = folder.resolve(), "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if place.is_relative_to(point) and len(point.parts) >= deepest:
            deepest, kind = len(point.parts), after.split()[0]
    return kind in _IN_MEMORY
