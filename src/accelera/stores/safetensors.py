"""``.safetensors`` files: a JSON header we check ourselves, then the arrays one after the other.

Everything in the header is distrusted: its length, its JSON, every offset, overlaps and holes. No
array is loaded. complex128 has no name in the format and cannot be written; 8-bit and smaller floats
are recognised and refused.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from accelera.errors import ArgumentError, DTypeError, StoreError, StoreFormatError, UnknownNameError
from accelera.stores.dtypes import parse_dtype
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor, read_at
from accelera.stores.flatoutput import FlatOutput
from accelera.stores.formats import DATA_ALIGNMENT, Source, Target
from accelera.stores.remotefile import RemoteFile
from accelera.stores.remotestore import RemoteStore
from accelera.stores.urls import Url

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_LONGEST_HEADER = 100_000_000
_DEFAULT_KEY = "tensor"


def open_path(source: Source) -> FlatFile:
    """Open one tensor of a file: the one called ``key``, or the only one there is.

    Raises StoreFormatError for a damaged header and when several tensors are there and none is named,
    UnknownNameError for a name that is not, DTypeError for elements that no store holds.
    """
    source.refuse("offset")
    path = source.path
    descriptor = open_descriptor(path)
    try:
        text, entries = _header(path, descriptor)
        placement = _select(path, entries, source.key, 8 + len(text))
    except BaseException:
        os.close(descriptor)
        raise
    return FlatFile(path, descriptor, placement, header=zlib.crc32(text), direct=source.direct)


def open_remote(url: Url, source: Source) -> RemoteStore:
    """Open one tensor of a file behind a URL; only the header is transferred.

    Raises the errors of ``open_path``, and StoreError when a request fails.
    """
    source.refuse("offset")
    file = RemoteFile(url)
    text, entries = _parsed_header(file.name, file.size, file.read_at)
    placement = _select(file.name, entries, url.key, 8 + len(text))
    return RemoteStore(file, placement, header=zlib.crc32(text))


class TensorEntry(NamedTuple):
    """Place of one tensor in a file."""

    dtype: str
    """Element type as the format writes it: ``"F32"``, ``"BF16"``, ``"F8_E4M3"`` …"""
    shape: tuple[int, ...]
    offset: int
    """File position of its first byte."""
    nbytes: int


def tensor_entries(path: Path) -> dict[str, TensorEntry]:
    """Return every tensor of a ``.safetensors`` file by name, element types that no store holds included.

    Raises StoreError when the file cannot be opened and StoreFormatError for a damaged header.
    """
    descriptor = open_descriptor(path)
    try:
        text, entries = _header(path, descriptor)
    finally:
        os.close(descriptor)
    return {name: _entry(entry, 8 + len(text)) for name, entry in entries.items()}


def _entry(entry: dict[str, Any], start: int) -> TensorEntry:
    begin, end = entry["data_offsets"]
    return TensorEntry(entry["dtype"], tuple(entry["shape"]), start + begin, end - begin)


def tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in a file.

    Raises StoreFormatError for a damaged header.
    """
    descriptor = open_descriptor(path)
    try:
        return list(_header(path, descriptor)[1])
    finally:
        os.close(descriptor)


def _header(path: Path, descriptor: int) -> tuple[bytes, dict[str, dict[str, Any]]]:
    return _parsed_header(path, os.fstat(descriptor).st_size, partial(read_at, descriptor))


def _parsed_header(
    path: Path | str, size: int, read: Callable[..., bytes]
) -> tuple[bytes, dict[str, dict[str, Any]]]:
    start = read(8)
    if len(start) < 8:
        raise _damaged(path, f"it has {size} bytes, less than the 8 of a header's length")
    length = int.from_bytes(start, "little")
    if length > min(_LONGEST_HEADER, size - 8):
        raise _damaged(
            path, f"its header claims {length} bytes, {size - 8} follow (at most {_LONGEST_HEADER})"
        )
    text = read(length, 8)
    entries = _entries(path, text)
    _check_coverage(path, entries, size - 8 - length)
    return text, entries


def _entries(path: Path | str, text: bytes) -> dict[str, dict[str, Any]]:
    try:
        fields = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _damaged(path, f"its header is a JSON {type(fields).__name__}, not an object")
    fields.pop("__metadata__", None)
    for name, entry in fields.items():
        if not _is_valid_entry(entry):
            raise _damaged(path, f"tensor {name!r} is described by {str(entry)[:120]}")
    return fields


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ArgumentError("a name appears twice")
    return fields


def _is_valid_entry(entry: Any) -> bool:
    """Return whether ``entry`` is a consistent ``{dtype: str, shape: [int], data_offsets: [begin, end]}``."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_naturals(shape) or not _are_naturals(offsets):
        return False
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        return False
    known = _DTYPES.get(entry["dtype"])
    return known is None or offsets[1] - offsets[0] == math.prod(shape) * parse_dtype(known).itemsize


def _are_naturals(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_coverage(path: Path | str, entries: dict[str, dict[str, Any]], size: int) -> None:
    """Raise StoreFormatError unless the arrays fill the file without overlaps or holes."""
    place = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != place:
            fault = "overlaps the one before" if begin < place else "leaves a hole before it"
            raise _damaged(path, f"tensor {name!r} at [{begin}, {end}) {fault}")
        place = end
    if place != size:
        raise _damaged(path, f"its tensors end at {place}, the data at {size}: it is cut off or has a tail")


def _select(path: Path | str, entries: dict[str, dict[str, Any]], key: str | None, start: int) -> Placement:
    if key is None:
        if len(entries) != 1:
            names = ", ".join(sorted(entries)[:20]) or "none"
            raise StoreFormatError(
                f"[open_store] {path} holds {len(entries)} tensors ({names}); "
                f"name one with key= or '{os.path.basename(path)}::name'"
            )
        key = next(iter(entries))
    if key not in entries:
        raise UnknownNameError.among("tensor", key, entries)
    entry = entries[key]
    if entry["dtype"] not in _DTYPES:
        raise DTypeError(
            f"[open_store] {path}::{key} has elements of type {entry['dtype']}; "
            f"a store holds {', '.join(_DTYPES)}; convert the tensor"
        )
    dtype = parse_dtype(_DTYPES[entry["dtype"]])
    return Placement.dense(tuple(entry["shape"]), dtype, offset=start + entry["data_offsets"][0])


def _damaged(path: Path | str, found: str) -> StoreFormatError:
    return StoreFormatError(f"[open_store] {path} is not a sound .safetensors file: {found}; write it again")


def create_path(target: Target) -> FlatOutput:
    """Begin a file with one tensor, called ``"tensor"`` unless ``"file.safetensors::name"`` says else.

    Raises StoreFormatError for ``order="F"`` and DTypeError for complex128: the format has neither.
    Raises StoreError when the file is there and holds other tensors, which would be lost.
    """
    target.refuse("chunk")
    _check_sole_entry(target)
    if target.order != "C":
        raise StoreFormatError(
            f"[create_store] {target.path}: .safetensors has C order only; leave order out"
        )
    header = safetensors_header(target.key or _DEFAULT_KEY, target.shape, target.dtype)
    return FlatOutput(target, header, Placement.dense(target.shape, target.dtype, offset=len(header)))


def _check_sole_entry(target: Target) -> None:
    try:
        others = [name for name in tensor_names(target.path) if name != (target.key or _DEFAULT_KEY)]
    except StoreError:
        return  # nothing there, or nothing that could be read
    if others:
        raise StoreError(
            f"[create_store] {target.path} holds other tensors ({', '.join(sorted(others)[:20])}), "
            "and a result replaces the whole file; write to another one"
        )


def safetensors_header(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes before the data, padded to a multiple of ``DATA_ALIGNMENT``."""
    names = {ours: theirs for theirs, ours in _DTYPES.items()}
    if dtype.name not in names:
        raise DTypeError(
            f"[create_store] .safetensors cannot hold {dtype}; write .npy, or convert the result"
        )
    size = math.prod(shape) * dtype.itemsize
    entry = {"dtype": names[dtype.name], "shape": list(shape), "data_offsets": [0, size]}
    text = json.dumps({name: entry}, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // DATA_ALIGNMENT) * DATA_ALIGNMENT - 8
    return length.to_bytes(8, "little") + text.ljust(length)
