"""Operations on open files that not every system offers, with the closest portable substitute."""

from __future__ import annotations

import errno
import os
import tempfile

_O_DIRECT = getattr(os, "O_DIRECT", None)


def reserve_space(descriptor: int, nbytes: int) -> None:
    """Give a file ``nbytes`` of disk space; where the filesystem cannot, only its length.

    Raises
    ------
    OSError
        The disk is full, or the file cannot be written.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, nbytes)
            return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    os.ftruncate(descriptor, nbytes)


def flush_data(descriptor: int) -> None:
    """Wait until the data of a file is on the disk; raises OSError when it could not be written."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def open_direct(descriptor: int, *, writable: bool) -> int:
    """Open the file of a descriptor once more past the page cache; -1 where that is not possible."""
    if _O_DIRECT is None:
        return -1
    flags = (os.O_RDWR if writable else os.O_RDONLY) | _O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        return -1


def anonymous_file(name: str) -> int:
    """Return the descriptor of an empty file in memory, or of one on disk that has no name.

    ``name`` appears in listings of the process's files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
