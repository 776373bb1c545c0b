"""Arrays and tensors whose memory is a mapped file: they are read from the file.

A budget bounds private memory and mapped pages: a map that is touched page by page makes the process grow by
the whole file.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from accelera.errors import StoreError
from accelera.memory._internal import ALWAYS_FITS_BYTES
from accelera.stores.dtypes import parse_dtype
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor
from accelera.stores.scratch import is_in_memory
from accelera.units import format_bytes

_PAGE_BYTES = mmap.PAGESIZE
_ENTRY_BYTES = 8
"""Bytes per page in ``/proc/self/pagemap``."""
_PRESENT, _SWAPPED, _FILE_PAGE = 63, 62, 61
"""Bits of such an entry: in RAM, in swap, and a page of the file itself."""


@dataclass(frozen=True)
class MappedFile:
    """A range of addresses at which the process sees a file."""

    path: Path
    low: int
    """First address."""
    offset: int
    """File position of the first address."""
    is_private: bool
    """Writes go to copies of the pages, not to the file."""
    is_writable: bool


def open_mapped(
    array: np.ndarray[Any, Any], direct: bool | None, *, writable: bool = False
) -> FlatFile | None:
    """Return the file behind ``array``, or None when its memory is not a map of a file on a disk.

    Maps of a file whose name another file has taken since count as arrays, and so do copy-on-write maps with
    changed pages of up to 1 MiB. ``writable`` opens the file for writing as well; then transfers go through
    the page cache, which the map shares. Raises StoreError for a read-only map as a result, and for a large
    copy-on-write map whose contents are not the file's.
    """
    root = _outermost_memmap(array)
    if root is None and (array.nbytes <= ALWAYS_FITS_BYTES or _owns_memory(array)):
        return None
    low, high = _span(array)
    mapping = file_mapping(low, high)
    if mapping is None or (root is None and is_in_memory(mapping.path.parent)):
        return None
    if mapping.is_private and (writable or _has_changed_pages(low, high)):
        if array.nbytes > ALWAYS_FITS_BYTES:
            _refuse_copies(array, mapping, writable=writable)
        return None
    if writable and not (array.flags.writeable and mapping.is_writable):
        raise StoreError(f"[out] a read-only map of {mapping.path}; open it with mode='r+' to write into it")
    offset = mapping.offset + array.__array_interface__["data"][0] - mapping.low
    dtype = parse_dtype(array.dtype, op="open_store")
    placement = Placement(array.shape, dtype, offset, array.strides, array.dtype != dtype)
    if root is not None and root.mode not in ("r", "c"):
        root.flush()
    elif mapping.is_writable and not mapping.is_private:
        direct = False  # the page cache has what was written through the map
    descriptor = open_descriptor(mapping.path, os.O_RDWR if writable else os.O_RDONLY)
    return FlatFile(
        mapping.path, descriptor, placement, writable=writable, direct=False if writable else direct
    )


def is_mapped(address: int, nbytes: int) -> bool:
    """Return whether memory of more than 1 MiB at ``address`` is a map of a file on a disk."""
    if nbytes <= ALWAYS_FITS_BYTES:
        return False
    mapping = file_mapping(address, address + nbytes)
    return mapping is not None and not is_in_memory(mapping.path.parent)


def file_mapping(low: int, high: int) -> MappedFile | None:
    """Return the mapping of a file that holds the addresses from ``low`` to ``high``; None without one.

    A file that was renamed, replaced or deleted since it was mapped is none.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in maps.splitlines():
        span, flags, offset, _, inode, *name = line.split(maxsplit=5)
        first, end = (int(address, 16) for address in span.split("-"))
        if first <= low < end:
            if not name or high > end or not _is_current(Path(name[0]), int(inode)):
                return None
            return MappedFile(Path(name[0]), first, int(offset, 16), flags[3] == "p", flags[1] == "w")
    return None


def _is_current(path: Path, inode: int) -> bool:
    """Return whether the file of that name is the mapped one; overlay file systems report another inode."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_ino == inode or os.path.realpath(path) == str(path)


def _owns_memory(array: np.ndarray[Any, Any]) -> bool:
    node: Any = array
    while isinstance(node, np.ndarray) and node.base is not None:
        node = node.base
    return isinstance(node, np.ndarray)


def _span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the first address of an array's elements and the one after its last."""
    address = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return address, address
    reach = [stride * (size - 1) for stride, size in zip(array.strides, array.shape, strict=True)]
    low = address + sum(distance for distance in reach if distance < 0)
    return low, address + sum(distance for distance in reach if distance > 0) + array.itemsize


def _has_changed_pages(low: int, high: int) -> bool:
    """Return whether a private map has pages of its own in a range; True where the system does not tell."""
    first, end = low // _PAGE_BYTES, -(-high // _PAGE_BYTES)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first * _ENTRY_BYTES)
            data = file.read((end - first) * _ENTRY_BYTES)
    except OSError:
        return True
    entries = np.frombuffer(data, np.uint64)
    used = (entries >> np.uint64(_PRESENT) | entries >> np.uint64(_SWAPPED)) & np.uint64(1)
    own = ~(entries >> np.uint64(_FILE_PAGE)) & np.uint64(1)
    return len(entries) < end - first or bool((used & own).any())


def _refuse_copies(array: np.ndarray[Any, Any], mapping: MappedFile, *, writable: bool) -> NoReturn:
    size, path = format_bytes(array.nbytes), mapping.path
    if writable:
        raise StoreError(
            f"[out] a copy-on-write map of {path}: {size} would be written to private memory, not to the "
            "file; open it with mode='r+', or pass an array"
        )
    raise StoreError(
        f"[open_store] a copy-on-write map of {path} with changed pages: its {size} would become resident "
        "outside the budget; save it to a file and pass that, or pass np.array(x)"
    )


def _outermost_memmap(array: np.ndarray[Any, Any]) -> np.memmap[Any, Any] | None:
    """Return the outermost memmap of which ``array`` is a view; None when there is none."""
    found: np.memmap[Any, Any] | None = None
    node: Any = array
    while isinstance(node, np.ndarray):
        if isinstance(node, np.memmap) and getattr(node, "_mmap", None) is not None:
            found = node
        node = node.base
    return found
