"""A flat file being written: hidden under ``<name>.partial`` until it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera._atomic import keep_mode, publish
from accelera._descriptors import reserve_space
from accelera.errors import StoreError
from accelera.stores.contract import Layout, OutputStore, Store
from accelera.stores.flatfile import FlatFile, Placement, read_at
from accelera.stores.formats import Target
from accelera.stores.regions import Region
from accelera.stores.viewing import Viewing
from accelera.units import format_bytes


@final
class FlatOutput(OutputStore):
    """``header`` followed by an array, written to a partial file whose space is reserved at once.

    The partial file is locked, so two runs cannot write the same result. Raises StoreError when the
    folder is missing or read-only, the target is a folder, the disk cannot hold the file, or a file to
    resume does not match.
    """

    tier = "disk"

    def __init__(self, target: Target, header: bytes, placement: Placement) -> None:
        self.path, self._partial = target.path, target.partial
        self._target = target
        self.name = str(target.path)
        self.shape, self.dtype = target.shape, target.dtype
        self._is_published = False
        check_target(target.path)
        size = max(placement.end, len(header))
        descriptor = _lock(target)
        try:
            (_check_partial if target.resume else _begin)(target, descriptor, header, size)
        except BaseException:
            os.close(descriptor)
            raise
        self._file = FlatFile(
            self._partial,
            descriptor,
            placement,
            writable=True,
            header=zlib.crc32(header),
            direct=target.direct,
        )

    @property
    def partial(self) -> Path:
        """The partial file."""
        return self._partial

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Read what was written."""
        return self._file.read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Write ``data`` into ``region`` of the partial file; return its bytes."""
        return self._file.write(region, data)

    @property
    def layout(self) -> Layout:
        """The file's strides."""
        return self._file.layout

    @property
    def scratch_bytes(self) -> int:
        """The staging buffer of the calling thread, kept until the thread ends."""
        return self._file.scratch_bytes

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the identity of the partial file, or of the published one."""
        return self._file.fingerprint()

    def sample(self) -> int | None:
        """Return a checksum of a few kilobytes of it."""
        return self._file.sample()

    def flush(self) -> None:
        """Wait until everything written is on the disk."""
        self._file.flush()

    def use_direct(self, direct: bool | None) -> None:
        """Go around the page cache from now on: always, never, or (None) for what is not in it."""
        self._file.use_direct(direct)

    def close(self) -> None:
        """Close the partial file and leave it for a later ``resume``."""
        self._file.close()

    def viewing(self) -> tuple[Store, Viewing]:
        """Return the published file once there is one, else this output."""
        return self._file.viewing() if self._is_published else super().viewing()

    @property
    def read_only(self) -> str | None:
        """Why nothing more can be written: it is complete."""
        return "is complete; write to a new name" if self._is_published else None

    def commit(self) -> None:
        """Put the finished file in place of any older one, at once, and make that durable.

        From then on this store reads the published file. Raises StoreError, and leaves the partial
        file, when the system refuses.
        """
        self._target.refuse_commit()
        self._file.flush()
        try:
            publish(self._partial, self.path)
        except OSError as error:
            raise StoreError(
                f"[commit] {self._partial} cannot become {self.path}: {error.strerror}; rename it by hand"
            ) from error
        finally:
            self._file.close()
        self._is_published = True
        with contextlib.suppress(StoreError):  # another run may already have replaced it
            self._file = self._target.reopened()

    def abort(self, *, keep_partial: bool = False) -> None:
        """Close the partial file, and remove it unless it is to be resumed."""
        self._file.close()
        if not keep_partial and not self._target.joined and not self._is_published:
            self._partial.unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Raise StoreError unless a file called ``path`` can be created."""
    if path.is_dir():
        raise StoreError(f"[create_store] {path} is a folder; give the name of a file in it")
    check_folder(path)
    require_writable(path)


def require_writable(path: Path) -> None:
    """Raise StoreError for an existing file or folder without write permission: it is not replaced."""
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(
            f"[create_store] {path} is write-protected; choose another name, or make it writable (chmod u+w)"
        )


def check_folder(path: Path) -> None:
    """Raise StoreError unless the folder of ``path`` can take a new entry."""
    if not path.parent.is_dir():
        raise StoreError(f"[create_store] {path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreError(f"[create_store] {path}: the folder {path.parent} is read-only; choose another one")


def _lock(target: Target) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | (0 if target.resume else os.O_CREAT)
    try:
        descriptor = os.open(target.partial, flags, 0o666)
    except FileNotFoundError as error:
        raise StoreError(
            f"[create_store] nothing to resume: there is no {target.partial}; start without resume"
        ) from error
    except OSError as error:
        raise StoreError(f"[create_store] {target.partial} cannot be written: {error.strerror}") from error
    if not target.joined:
        claim(descriptor, target.partial)
    return descriptor


def claim(descriptor: int, partial: Path) -> None:
    """Lock an open partial file or folder against other runs, until its descriptor is closed.

    Raises StoreError, and closes the descriptor, when another run has it.
    """
    if not _lock_now(descriptor) or not _still_names(descriptor, partial):
        os.close(descriptor)
        raise StoreError(
            f"[create_store] {partial} is being written by another run; wait or choose another name"
        )


def _lock_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a filesystem without locks
        return error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
    return True


def _still_names(descriptor: int, path: Path) -> bool:
    """Return whether ``path`` still names the open file: another run may just have published it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _begin(target: Target, descriptor: int, header: bytes, size: int) -> None:
    try:
        keep_mode(target.path, descriptor)
        _reserve(descriptor, size)
        os.pwrite(descriptor, header, 0)
    except OSError as error:
        target.partial.unlink(missing_ok=True)
        status = os.statvfs(target.path.parent)
        free = status.f_bavail * status.f_frsize
        raise StoreError(
            f"[create_store] {target.path} needs {size} bytes ({format_bytes(size)}), and {free} "
            f"({format_bytes(free)}) are free: {error.strerror}; free some space or choose another disk"
        ) from error
    except BaseException:
        target.partial.unlink(missing_ok=True)
        raise


def _reserve(descriptor: int, size: int) -> None:
    """Reserve ``size`` bytes for the file, so that later writes find space, where the filesystem can."""
    os.ftruncate(descriptor, 0)
    status = os.fstatvfs(descriptor)
    if size > status.f_bavail * status.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reserve_space(descriptor, size)


def _check_partial(target: Target, descriptor: int, header: bytes, size: int) -> None:
    found = os.fstat(descriptor).st_size
    if found != size or read_at(descriptor, len(header)) != header:
        raise StoreError(
            f"[create_store] {target.partial} ({found} bytes) was begun for another result than "
            f"{target.dtype}{list(target.shape)} ({size} bytes); start without resume"
        )
