"""``numpy.memmap`` arrays (and their views): read from their file, so that no page is mapped in."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from accelera.stores.dtypes import parse_dtype
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor


def open_mapped(array: np.ndarray[Any, Any], direct: bool | None) -> FlatFile | None:
    """Return the file behind ``array``, or None when it is not (a view of) a memmap with a named file.

    Copy-on-write maps count as arrays: what was changed in them is not in the file.
    """
    root = _root(array)
    if root is None or root.filename is None or root.mode == "c":
        return None
    path = Path(root.filename)
    start: Any = root._mmap  # type: ignore[attr-defined]
    first = root.offset - root.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(start, np.uint8).ctypes.data
    offset = first + array.__array_interface__["data"][0] - address
    stored = parse_dtype(array.dtype, op="open_store")
    placement = Placement(array.shape, stored, offset, array.strides, array.dtype != stored)
    if root.mode != "r":
        root.flush()
    return FlatFile(path, open_descriptor(path), placement, direct=direct)


def _root(array: np.ndarray[Any, Any]) -> np.memmap[Any, Any] | None:
    """Return the outermost memmap that ``array`` looks into."""
    found: np.memmap[Any, Any] | None = None
    node: Any = array
    while isinstance(node, np.ndarray):
        if isinstance(node, np.memmap) and getattr(node, "_mmap", None) is not None:
            found = node
        node = node.base
    return found
