"""Arrays that lie flat in a file: a descriptor, an offset, a shape and byte strides."""

from __future__ import annotations

import errno
import os
import stat
import weakref
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

import numpy as np

from accelera import _native
from accelera._descriptors import flush_data, open_direct
from accelera._similar import files_like
from accelera.errors import StoreChangedError, StoreError, StoreFormatError
from accelera.stores.contract import Layout, Store
from accelera.stores.dtypes import as_bytes_of
from accelera.stores.regions import (
    Region,
    axis_length,
    check_transfer,
    inner_region,
    parts,
    piece_shape,
    view_key,
    whole,
)
from accelera.stores.sampling import sample_of_descriptor
from accelera.units import format_bytes

_SWAPPED_BYTES = 256 << 10
"""Size of the copies in which data is turned into the other byte order for a file that has it."""


@dataclass(frozen=True)
class Placement:
    """Place of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Element type, in native byte order."""
    offset: int
    """File position of the first element, in bytes."""
    strides: tuple[int, ...]
    """Bytes between neighbours along each axis."""
    swapped: bool = False
    """The file holds the other byte order; elements are swapped as they are read."""

    @classmethod
    def dense(
        cls,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        offset: int = 0,
        order: str = "C",
        swapped: bool = False,
    ) -> Placement:
        """Describe an array without gaps, last (``"C"``) or first (``"F"``) axis fastest."""
        strides = [0] * len(shape)
        distance = dtype.itemsize
        for axis in range(len(shape)) if order == "F" else reversed(range(len(shape))):
            strides[axis] = distance
            distance *= shape[axis]
        return cls(shape, dtype, offset, tuple(strides), swapped)

    @property
    def begin(self) -> int:
        """File position of the first byte used, which a backwards axis puts before ``offset``."""
        if 0 in self.shape:
            return self.offset
        return self.offset + sum(
            min(0, stride) * (size - 1) for stride, size in zip(self.strides, self.shape, strict=True)
        )

    @property
    def end(self) -> int:
        """One past the last byte used, or ``offset`` when there are no elements."""
        if 0 in self.shape:
            return self.offset
        last = [max(0, stride) * (size - 1) for stride, size in zip(self.strides, self.shape, strict=True)]
        return self.offset + sum(last) + self.dtype.itemsize


_LONGEST_HEADER = 1 << 20
"""Bytes before the elements that are compared with those at opening before a run starts."""


class _OpenedFile(NamedTuple):
    """Facts about a file when it was opened."""

    size: int
    mtime_ns: int
    inode: int
    header: int
    """Checksum of the bytes before the elements; 0 for a file without a header."""


@final
class FlatFile(Store):
    """An array in a file, read and written in place through its descriptor; the file is never mapped.

    Takes ownership of ``descriptor`` and closes it. ``direct`` says whether transfers bypass the page cache:
    always, never, or (None) for pages that are not cached; direct I/O takes a tenth of the processor time and
    leaves the cache as it is. Filesystems without it are read through the cache. Raises StoreFormatError when
    the file is too short.
    """

    tier = "disk"

    def __init__(
        self,
        path: Path,
        descriptor: int,
        placement: Placement,
        *,
        writable: bool = False,
        header: int = 0,
        direct: bool | None = None,
    ) -> None:
        self.path = path
        self.name = str(path)
        self.placement = placement
        self.shape, self.dtype = placement.shape, placement.dtype
        self._header = header
        self._writable = writable
        self._descriptor = descriptor
        self._direct_descriptor = -1
        self._descriptors = [descriptor]
        self._close = weakref.finalize(self, _close_all, self._descriptors)
        self._check_size()
        self._opened_as = self._facts()
        self.use_direct(direct)

    def _check_size(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size < self.placement.end:
            self.close()
            raise StoreFormatError(
                f"[open_store] {self.name} has {size} bytes, but {self.dtype}{list(self.shape)} at byte "
                f"{self.placement.offset} ends at {self.placement.end}; it is cut off, or its shape is wrong"
            )

    def _facts(self) -> _OpenedFile:
        status = os.fstat(self._descriptor)
        start = (
            read_at(self._descriptor, min(self.placement.offset, _LONGEST_HEADER)) if self._header else b""
        )
        return _OpenedFile(status.st_size, status.st_mtime_ns, _inode_of(self.path), zlib.crc32(start))

    def require_current(self) -> None:
        """Raise StoreChangedError when the file is not the one that was opened, or has another header.

        Elements that were rewritten in place under the same header are read as they are now.
        """
        descriptor, expected = self._open("require_current"), self._opened_as
        if self._writable:
            return
        status, inode = os.fstat(descriptor), _inode_of(self.path)
        if inode not in (0, expected.inode):
            self._refuse_changed("was replaced by another file")
        if (status.st_size, status.st_mtime_ns) == (expected.size, expected.mtime_ns):
            return
        if status.st_size < self.placement.end or (not self._header and status.st_size != expected.size):
            self._refuse_changed(f"has {status.st_size} bytes instead of {expected.size}")
        if self._facts().header != expected.header:
            self._refuse_changed("was rewritten with another header")

    def _refuse_changed(self, how: str) -> NoReturn:
        raise StoreChangedError(f"[read] {self.name} {how} since it was opened; open it again")

    def __reduce__(self) -> Any:
        """Pickle as a file to be opened again, in this or in another process.

        Raises StoreError for a store that is closed or open for writing.
        """
        self._open("pickle")
        if self._writable:
            raise StoreError(f"[pickle] {self.name} is open for writing; send its path")
        self.require_current()
        path = Path(os.path.abspath(self.path))
        if _inode_of(path) != self._opened_as.inode:
            raise StoreError(
                f"[pickle] {self.name} is relative to another folder than the current one; open it by its "
                "absolute path"
            )
        direct = self._direct
        return _open_sent, (path, self.placement, self._header, direct, self._opened_as)

    def _open(self, op: str) -> int:
        if not self._close.alive:
            raise StoreError(f"[{op}] {self.name} is closed; open it again")
        return self._descriptor

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Read ``region`` into ``out`` without holding the GIL; return its bytes.

        Raises StoreError when the file ends early or the system refuses.
        """
        descriptor = self._open("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        offset, strides = self._locate(region)
        failure = _native.read_region(
            descriptor, offset, strides, as_bytes_of(out), self._direct_descriptor, self._direct is None
        )
        if failure is not None:
            raise _transfer_error("read", self.name, *failure)
        if self.placement.swapped:
            out.byteswap(inplace=True)
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Write ``data`` into ``region`` without holding the GIL; return its bytes.

        Raises StoreError when the file is open for reading only, or the disk is full.
        """
        descriptor = self._open("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        if not self._writable:
            raise StoreError(f"[write] {self.name} {self.read_only}")
        for part, piece in self._in_file_order(region, data):
            offset, strides = self._locate(part)
            failure = _native.write_region(
                descriptor, offset, strides, as_bytes_of(piece), self._direct_descriptor
            )
            if failure is not None:
                raise _transfer_error("write", self.name, *failure)
        return data.nbytes

    def _in_file_order(
        self, region: Region, data: np.ndarray[Any, Any]
    ) -> Iterator[tuple[Region, np.ndarray[Any, Any]]]:
        """Yield ``data`` as the file's byte order has it, in small swapped copies where that differs."""
        if not self.placement.swapped:
            yield region, data
            return
        for place, _ in parts(whole(data.shape), piece_shape(data.shape, data.itemsize, _SWAPPED_BYTES)):
            yield inner_region(region, place), data[view_key(place)].byteswap()

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written here; None where ``write`` works."""
        return None if self._writable else "is open for reading; write to a new name, or into an array"

    def use_direct(self, direct: bool | None) -> None:
        """Go around the page cache from now on: always, never, or (None) for what is not in it."""
        descriptor = self._open("use_direct")
        self._direct = direct
        if direct is False:
            self._direct_descriptor = -1
        elif len(self._descriptors) > 1:
            self._direct_descriptor = self._descriptors[1]
        else:
            self._direct_descriptor = open_direct(descriptor, writable=self._writable)
            if self._direct_descriptor >= 0:
                self._descriptors.append(self._direct_descriptor)

    def _locate(self, region: Region) -> tuple[int, list[int]]:
        strides = self.placement.strides
        offset = self.placement.offset + sum(
            part.start * stride for part, stride in zip(region, strides, strict=True) if axis_length(part)
        )
        return offset, [stride * (part.step or 1) for part, stride in zip(region, strides, strict=True)]

    @property
    def layout(self) -> Layout:
        """The file's strides."""
        return Layout.of_strides(self.shape, self.placement.strides, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """The staging buffer of the calling thread, kept until the thread ends."""
        return _native.STAGING_BYTES_PER_THREAD

    def fingerprint(self) -> Mapping[str, Any]:
        """Return size, modification time, inode, header checksum and placement: no path in it."""
        status = os.fstat(self._open("fingerprint"))
        return {
            "kind": "file",
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "inode": status.st_ino,
            "header": self._header,
            "dtype": str(self.dtype),
            "shape": list(self.shape),
            "strides": list(self.placement.strides),
            "offset": self.placement.offset,
        }

    def sample(self) -> int:
        """Return a checksum of bytes spread evenly over the array, both ends included.

        Raises StoreError when they cannot be read.
        """
        descriptor, start = self._open("sample"), self.placement.offset
        first = start + sum(
            min(0, stride) * (size - 1)
            for stride, size in zip(self.placement.strides, self.shape, strict=True)
            if size
        )
        try:
            return sample_of_descriptor(descriptor, first, self.placement.end)
        except OSError as error:
            raise _transfer_error(
                "sample", self.name, error.errno or errno.EIO, start, self.nbytes, 0
            ) from error

    def flush(self) -> None:
        """Wait until everything written is on the disk."""
        try:
            flush_data(self._open("flush"))
        except OSError as error:
            raise _transfer_error("flush", self.name, error.errno or errno.EIO, 0, self.nbytes, 0) from error

    def close(self) -> None:
        """Close the descriptor."""
        self._close()


def _open_sent(
    path: Path, placement: Placement, header: int, direct: bool | None, expected: _OpenedFile
) -> FlatFile:
    """Return the store of a file that a pickled one names; raises StoreChangedError for another file."""
    store = FlatFile(path, open_descriptor(path), placement, header=header, direct=direct)
    opened_as = store._opened_as
    if (opened_as.size, opened_as.header) != (expected.size, expected.header):
        store.close()
        raise StoreChangedError(f"[unpickle] {path} is not the file that was sent; open it again")
    return store


def _inode_of(path: Path) -> int:
    """Return the number of the file of that name; 0 without one."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _transfer_error(op: str, name: str, code: int, offset: int, wanted: int, got: int) -> StoreError:
    """Return the error for a transfer that stopped after ``got`` of ``wanted`` bytes at ``offset``."""
    where = f"[{op}] {name} at byte {offset}: {got} of {wanted} bytes moved"
    if code == 0:
        return StoreError(f"{where}: short read, the file ends here; it was truncated after it was opened")
    if code in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"{where}: disk full ({os.strerror(code)}); {_free_space(name)}free some space")
    return StoreError(f"{where}: {os.strerror(code)}")


def _free_space(name: str) -> str:
    try:
        status = os.statvfs(name)
    except OSError:
        return ""
    return f"{format_bytes(status.f_bavail * status.f_frsize)} are left; "


def open_descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor.

    Raises StoreError naming similar files when there is none, and for directories and devices.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _cannot_open(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"[open_store] {path} is not a regular file; give a file")
    return descriptor


def _cannot_open(path: Path, error: OSError) -> StoreError:
    if isinstance(error, FileNotFoundError):
        return StoreError(f"[open_store] no file {path}{_similar(path)}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(
            f"[open_store] {path} cannot be opened: the limit on open files is reached; raise it with "
            "ulimit -n, or pass fewer files"
        )
    return StoreError(f"[open_store] {path} cannot be opened: {error.strerror}; check its permissions")


def _similar(path: Path) -> str:
    try:
        near = files_like(path)
    except OSError:
        return f": the folder {path.parent} does not exist"
    return f"; did you mean {' or '.join(near)}?" if near else f" in {path.parent}, nor one of a similar name"


def read_at(descriptor: int, count: int, offset: int = 0) -> bytes:
    """Return up to ``count`` bytes of a file from ``offset``."""
    found = b""
    while len(found) < count:
        part = os.pread(descriptor, count - len(found), offset + len(found))
        if not part:
            break
        found += part
    return found
