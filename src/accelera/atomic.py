"""Atomic writes: a file is there whole under its name, or not at all."""

from __future__ import annotations

import os
import secrets
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
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield partial
        if durable:
            sync(partial)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


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
