"""``numpy.memmap`` arrays (and their views): read from their file, so that no page is mapped in."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from accelera.errors import StoreError
from accelera.stores.dtypes import parse_dtype
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor


def open_mapped(
    array: np.ndarray[Any, Any], direct: bool | None, *, writable: bool = False
) -> FlatFile | None:
    """Return the file behind ``array``, or None when it is not (a view of) a memmap with a named file.

    Copy-on-write maps count as arrays: what was changed in them is not in the file. So do maps of a file
    that another one has replaced under its name. ``writable`` opens the file for writing as well; then
    transfers go through the page cache, which the map shares. Raises StoreError for a read-only map.
    """
    root = _root(array)
    if root is None or root.filename is None or root.mode == "c":
        return None
    path = Path(root.filename)
    if not _is_mapped_here(array, path):
        return None
    if writable and not array.flags.writeable:
        raise StoreError(f"[out] a read-only map of {path}; open it with mode='r+' to write into it")
    start: Any = root._mmap  # type: ignore[attr-defined]
    first = root.offset - root.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(start, np.uint8).ctypes.data
    offset = first + array.__array_interface__["data"][0] - address
    stored = parse_dtype(array.dtype, op="open_store")
    placement = Placement(array.shape, stored, offset, array.strides, array.dtype != stored)
    if root.mode != "r":
        root.flush()
    descriptor = open_descriptor(path, os.O_RDWR if writable else os.O_RDONLY)
    return FlatFile(path, descriptor, placement, writable=writable, direct=False if writable else direct)


def _is_mapped_here(array: np.ndarray[Any, Any], path: Path) -> bool:
    """Whether the memory of ``array`` shows the file that is called ``path`` now, where the system says."""
    try:
        maps, status = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"), os.stat(path)
    except OSError:
        return path.exists()
    address = array.__array_interface__["data"][0]
    for line in maps.splitlines():
        span, _, _, _, inode, *name = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            return int(inode) == status.st_ino or name == [os.path.realpath(path)]
    return array.size == 0


def _root(array: np.ndarray[Any, Any]) -> np.memmap[Any, Any] | None:
    """Return the outermost memmap that ``array`` looks into."""
    found: np.memmap[Any, Any] | None = None
    node: Any = array
    while isinstance(node, np.ndarray):
        if isinstance(node, np.memmap) and getattr(node, "_mmap", None) is not None:
            found = node
        node = node.base
    return found
