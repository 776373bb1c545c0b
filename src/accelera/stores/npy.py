"""NumPy's ``.npy`` files, versions 1 to 3, read without unpickling anything.

``.npy`` has no name for bfloat16: NumPy writes such arrays as raw two-byte elements (``'<V2'``). They
are read back as bfloat16 when that is asked for (``dtype="bfloat16"``), and written the same way.
"""

from __future__ import annotations

import ast
import os
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accelera.errors import DTypeError, StoreFormatError
from accelera.stores.dtypes import BFLOAT16, parse_dtype
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor, read_at
from accelera.stores.flatoutput import FlatOutput
from accelera.stores.formats import DATA_ALIGNMENT, Source, Target
from accelera.stores.remotefile import RemoteFile
from accelera.stores.remotestore import RemoteStore
from accelera.stores.urls import Url

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_LONGEST_HEADER = 64 << 10
"""Bytes of a header that are read without being told to: parsing a long one takes much memory."""
_FOREIGN = ">" if sys.byteorder == "little" else "<"


def open_path(source: Source) -> FlatFile:
    """Open a ``.npy`` file for reading.

    Raises StoreFormatError when the header is damaged, DTypeError when the elements cannot be held or
    are not of the ``dtype`` asked for.
    """
    source.refuse("key", "offset")
    path = source.path
    descriptor = open_descriptor(path)
    try:
        placement, header = _parse(path, partial(read_at, descriptor), source.dtype, source.max_header_size)
    except BaseException:
        os.close(descriptor)
        raise
    return FlatFile(path, descriptor, placement, header=zlib.crc32(header), direct=source.direct)


def open_remote(url: Url, source: Source) -> RemoteStore:
    """Open a ``.npy`` file behind a URL; only its header is transferred.

    Raises the errors of ``open_path``, and StoreError when a request fails.
    """
    source.refuse("key", "offset")
    file = RemoteFile(url)
    placement, header = _parse(file.name, file.read_at, source.dtype, source.max_header_size)
    return RemoteStore(file, placement, header=zlib.crc32(header))


def _parse(
    path: Path | str, read: Callable[..., bytes], dtype: np.dtype[Any] | None, max_header_size: int | None
) -> tuple[Placement, bytes]:
    start = read(12)
    if start[:6] != _MAGIC:
        raise _damaged(path, f"it begins with {start[:6]!r}, a .npy file with {_MAGIC!r}")
    if len(start) < 12 or start[6] not in _LENGTH_BYTES:
        raise _damaged(path, f"its version is {tuple(start[6:8])}; 1.0, 2.0 and 3.0 are known")
    width = _LENGTH_BYTES[start[6]]
    length = int.from_bytes(start[8 : 8 + width], "little")
    longest = _LONGEST_HEADER if max_header_size is None else max_header_size
    if length > longest:
        raise StoreFormatError(
            f"[open_store] {path}: its header claims {length} bytes, and at most {longest} are read without "
            f"being told to; if you trust the file, give open_store max_header_size={length}"
        )
    header = read(length, 8 + width)
    if len(header) < length:
        raise _damaged(path, f"its header claims {length} bytes, the file ends after {len(header)} of them")
    fields = _fields(path, header.decode("utf-8" if start[6] == 3 else "latin1", "replace"))
    return _placement(path, fields, 8 + width + length, dtype), header


def _fields(path: Path | str, text: str) -> dict[str, Any]:
    try:
        fields = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _damaged(path, f"its header {text[:60]!r} is not a Python dict") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise _damaged(path, f"its header {text[:60]!r} must have the keys descr, fortran_order and shape")
    shape = fields["shape"]
    if not isinstance(shape, tuple) or any(type(size) is not int or size < 0 for size in shape):
        raise _damaged(path, f"its shape is {shape!r}")
    if type(fields["fortran_order"]) is not bool:
        raise _damaged(path, f"its fortran_order is {fields['fortran_order']!r}")
    return fields


def _placement(
    path: Path | str, fields: dict[str, Any], offset: int, dtype: np.dtype[Any] | None
) -> Placement:
    stored, swapped = _element(path, fields["descr"], dtype)
    order = "F" if fields["fortran_order"] else "C"
    return Placement.dense(fields["shape"], stored, offset=offset, order=order, swapped=swapped)


def _element(path: Path | str, descr: Any, wanted: np.dtype[Any] | None) -> tuple[np.dtype[Any], bool]:
    """Return the element type and whether its bytes are swapped."""
    if wanted == BFLOAT16 and descr in ("<V2", "|V2", "<u2"):
        return BFLOAT16, False
    if not isinstance(descr, str):
        raise DTypeError(f"[open_store] {path} holds records {descr!r}; one number per element is needed")
    if descr in ("<V2", "|V2"):
        raise DTypeError(
            f"[open_store] {path} holds raw two-byte elements ({descr}); say what they are: dtype='bfloat16'"
        )
    try:
        element = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError) as error:
        raise _damaged(path, f"its element type {descr!r} is unknown") from error
    if element.hasobject:
        raise DTypeError(f"[open_store] {path} holds pickled Python objects, which are never loaded")
    stored = parse_dtype(element, op=f"open_store {os.path.basename(path)}")
    if wanted is not None and wanted != stored:
        raise DTypeError(f"[open_store] {path} holds {stored}, but {wanted} was asked for; leave dtype out")
    return stored, descr.startswith(_FOREIGN) and stored.itemsize > 1


def _damaged(path: Path | str, found: str) -> StoreFormatError:
    return StoreFormatError(f"[open_store] {path} is not a sound .npy file: {found}; write it again")


def create_path(target: Target) -> FlatOutput:
    """Begin a new ``.npy`` file."""
    target.refuse("key", "chunk")
    header = npy_header(target.shape, target.dtype, order=target.order)
    placement = Placement.dense(target.shape, target.dtype, offset=len(header), order=target.order)
    return FlatOutput(target, header, placement)


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any], *, order: str = "C") -> bytes:
    """Return the bytes before the data, padded to a multiple of ``DATA_ALIGNMENT``."""
    descr = "<V2" if dtype == BFLOAT16 else dtype.str
    text = f"{{'descr': {descr!r}, 'fortran_order': {order == 'F'}, 'shape': {shape!r}, }}"
    length = -(-(10 + len(text) + 1) // DATA_ALIGNMENT) * DATA_ALIGNMENT - 10
    return _MAGIC + bytes([1, 0]) + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
