"""Atomic writes: a file is there whole under its name, or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a new empty file beside ``path`` to write to; it becomes ``path`` when all went well.

    Otherwise the partial file is removed, and what was at ``path`` stays. ``durable``: the contents are on
    the disk before the file gets its name.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        keep_mode(path, descriptor)
    finally:
        os.close(descriptor)
    try:
        yield partial
        if durable:
            sync(partial)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def keep_mode(path: Path, descriptor: int) -> None:
    """Give an open file or folder the permissions, and if possible the owner, of the one that it replaces."""
    try:
        older = os.stat(path)
    except OSError:
        return
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (older.st_uid, older.st_gid):
        with suppress(OSError):  # only root may give files away
            os.fchown(descriptor, older.st_uid, older.st_gid)
    with suppress(OSError):  # a file system without permissions
        os.fchmod(descriptor, stat.S_IMODE(older.st_mode))


def publish(partial: Path, path: Path) -> None:
    """Give a complete file, whose contents are on the disk, its name in place of an older one, durably."""
    os.replace(partial, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
