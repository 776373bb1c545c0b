"""``open_store``, ``open_result`` and ``create_store``: from what a user holds to a store."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from accelera._native import STAGING_BYTES_PER_THREAD
from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores.array import ArrayOutput, ArrayStore
from accelera.stores.contract import OutputStore, Store
from accelera.stores.dtypes import parse_dtype
from accelera.stores.foreign import open_foreign, refuse_foreign_result, within_small
from accelera.stores.formats import Source, Target, format_of, is_known
from accelera.stores.regions import check_shape
from accelera.stores.urls import is_url, open_url, parse_url, refuse_url_result

if TYPE_CHECKING:
    import torch

_LONGEST_SUFFIX = ".replaced"
"""What a name gets while its result is not complete; the longest of such."""
_SEQUENCES = (list, tuple, int, float, complex, np.generic)


def open_store(
    x: Any,
    *,
    shape: Sequence[SupportsIndex] | None = None,
    dtype: Any = None,
    offset: int | np.integer[Any] = 0,
    key: str | None = None,
    direct: bool | None = None,
    max_header_size: int | None = None,
    external_files: bool = False,
) -> Store:
    """Return a store over ``x`` without copying it.

    ``x`` is a path (``.npy``, ``.safetensors``, ``.h5``, ``.bin`` ``.raw`` ``.dat``, ``.zarr`` or a folder
    that holds a Zarr array), a URL that ``fsspec`` reads (``https://``, ``s3://`` …; of any of these but
    ``.h5``), a NumPy array or memmap, a torch tensor, a ``zarr.Array``, an ``h5py.Dataset``, a
    dask array, an ``xarray.DataArray``, a data frame of pandas or polars, nested lists of numbers, or a
    store, which is returned as it is. ``"file.safetensors::name"`` and ``key`` name one of several arrays.
    ``shape``, ``dtype`` and ``offset`` describe a raw file; elsewhere ``shape`` and ``dtype`` are checked.
    ``direct`` reads files around the page cache: always, never, or (None) for what is not in it.
    ``max_header_size`` admits ``.npy`` headers of more bytes than the usual 64 KiB. ``external_files`` admits
    HDF5 datasets whose elements are stored in other files.

    Parameters
    ----------
    x
        A path, a URL, an array, a tensor, a ``Matrix``, or an array of another library; a store is returned
        as it is.
    shape, dtype, offset
        Of a raw file: its shape, its element type, and the byte at which the data begins.
    key
        Name of one array of a file that holds several.
    direct
        Whether to go around the page cache: always, never, or (None) for what is not in it.
    max_header_size
        Longest header of a ``.npy`` file that is read.
    external_files
        Whether external storage, external links and virtual datasets of an HDF5 file are followed. A file
        from elsewhere could name any file that this process may read.

    Raises
    ------
    StoreError
        For files that cannot be read and for objects that could only be loaded whole.
    StoreFormatError
        For damaged files.
    DTypeError
        For elements that no store holds (masked ones and sparse matrices among them).
    ShapeError
        When the shape is not the one asked for.
    """
    wanted_dtype = None if dtype is None else parse_dtype(dtype, op="open_store")
    wanted_shape = None if shape is None else _whole(shape)
    if isinstance(x, Store):
        store = x
    elif isinstance(x, (str, PathLike)):
        known = Source(
            Path(),
            key,
            wanted_shape,
            wanted_dtype,
            _whole_offset(offset),
            direct,
            max_header_size,
            external_files,
        )
        store = _open_named(os.fsdecode(fspath(x)), known)
    else:
        if offset or key is not None:
            raise StoreFormatError("[open_store] offset and key describe files; leave them out for arrays")
        store = _open_object(x, direct)
    return _checked(store, wanted_shape, wanted_dtype)


def _open_named(text: str, source: Source) -> Store:
    """Return the store of a path or URL, with the array name that it may end in."""
    if is_url(text):
        url = parse_url(text, source.key)
        if url.local_path is None:
            remote: Store = open_url(
                url, replace(source, path=Path(url.name), key=url.key, url_name=url.name)
            )
            return remote
        text, source = url.local_path, replace(source, key=url.key)
    path, key = split_key(text, source.key)
    check_name("open_store", path)
    store: Store = format_of(path).open_path(replace(source, path=path, key=key))
    return store


def open_result(out: Any) -> Store:
    """Return the store of something that exists and that a result can be written into.

    That is a writeable NumPy array or memmap, a tensor, a ``zarr.Array``, an ``h5py.Dataset`` or a store.
    The one place where it is decided what can be: raises StoreError for what cannot be written (read-only
    arrays, maps and datasets, tensors that require a gradient, dask and xarray), DTypeError for what is
    no array (lists, objects with nothing but ``__array__``), each with what to give instead.
    """
    store = _opened_result(out)
    if store.read_only is not None:
        raise StoreError(f"[out] {store.name} {store.read_only}")
    return store


def create_store(
    target: str | PathLike[str] | np.ndarray[Any, Any] | torch.Tensor | None,
    shape: Sequence[SupportsIndex],
    dtype: Any,
    *,
    resume: bool = False,
    order: str = "C",
    chunk: Sequence[int] | None = None,
    codec: str | None = None,
    direct: bool | None = None,
) -> OutputStore:
    """Begin a result of ``shape`` and ``dtype``.

    ``target`` is a path (the format follows from its suffix), a NumPy array or torch tensor to fill,
    or None for a new array in RAM. A file is written as ``<name>.partial`` beside its target, its space
    is reserved at once, and ``commit`` puts it in place; a symbolic link is followed. ``resume`` goes on
    with the partial file of an interrupted run. ``order="F"`` makes the first axis the fastest. ``chunk``
    and ``codec`` are the chunk shape and the compression of a Zarr result, such as
    ``"zstd"``, ``"gzip"``, ``"blosc-lz4"``, with a level ``"zstd:9"``.

    Raises StoreError, before anything is computed, when the target cannot be written.
    """
    sizes, element = _whole(shape), parse_dtype(dtype, op="create_store")
    check_shape("create_store", sizes, element.itemsize)
    if order not in ("C", "F"):
        raise StoreFormatError(f"[create_store] order={order!r}; it is 'C' or 'F'")
    if isinstance(target, (str, PathLike)):
        path, (_, key) = result_path(target), split_key(target, None)
        pieces = None if chunk is None else _whole(chunk)
        wish = Target(
            path, sizes, element, key, order, chunk=pieces, resume=resume, direct=direct, codec=codec
        )
        output: OutputStore = format_of(path).create_path(wish)
        return output
    if resume:
        raise StoreError("[create_store] resume=True: only results in files can be resumed; give a path")
    if target is None:
        return ArrayOutput(np.empty(sizes, element, order="F" if order == "F" else "C"), sizes, element)
    return _fill_object(target, sizes, element)


def output_scratch_bytes(
    target: str | PathLike[str], chunk: Sequence[int] | None = None, dtype: Any = None
) -> int:
    """Return the most host memory that one write to a new file at ``target`` takes besides its data.

    ``chunk`` and ``dtype`` describe the pieces of a chunked file where they are not its own choice.
    """
    path, _ = split_key(target, None)
    module = format_of(path)
    if chunk is not None and dtype is not None and hasattr(module, "chunk_scratch_bytes"):
        return int(module.chunk_scratch_bytes(tuple(chunk), parse_dtype(dtype)))
    scratch: int = getattr(module, "SCRATCH_BYTES", STAGING_BYTES_PER_THREAD)
    return scratch


def remove_leftovers(target: str | PathLike[str]) -> None:
    """Remove what a run that was killed after it published ``target`` has left beside it."""
    path, _ = split_key(target, None)
    remove = getattr(format_of(path), "remove_leftovers", None)
    if remove is not None:
        remove(path)


def split_key(x: str | PathLike[str], key: str | None) -> tuple[Path, str | None]:
    """Return the path and the name in ``"path::name"``, or ``key``; they must not differ."""
    text, mark, name = _partitioned(os.fsdecode(fspath(x)))
    if mark and key not in (None, name):
        raise StoreFormatError(
            f"[open_store] {x} names {name!r}, key={key!r} another array; give one of them"
        )
    if "\0" in name:
        raise StoreFormatError(f"[open_store] {x!r} names an array with a NUL byte; choose another name")
    return _expanded(text), name if mark else key


def _partitioned(text: str) -> tuple[str, str, str]:
    """Return the path, ``"::"`` and the name in a text; no name where the text is a path as a whole."""
    path, mark, name = text.partition("::")
    is_path = mark and (os.path.exists(text) or not (os.path.isdir(path) or is_known(Path(path))))
    return (text, "", "") if is_path else (path, mark, name)


def result_path(out: str | PathLike[str]) -> Path:
    """Return the file that a result called ``out`` goes to: without ``::key``, links followed.

    Raises StoreError for URLs and for names that no file can have.
    """
    refuse_url_result(os.fsdecode(fspath(out)))
    path, _ = split_key(out, None)
    check_name("out", path)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
        check_name("out", path)
    return path


def check_name(op: str, path: Path) -> None:
    """Raise StoreError for a path that no file can have: empty, too long, in a loop of links."""
    if not path.name or path == Path():
        raise StoreError(f"[{op}] {str(path)!r} names no file; give one, such as 'C.npy'")
    try:
        os.lstat(path.with_name(path.name + _LONGEST_SUFFIX))
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except OSError as error:
        raise StoreError(f"[{op}] {_shortened(path)}: {error.strerror}; choose another name") from error
    except ValueError as error:  # a NUL byte, or letters that the file system's encoding lacks
        raise StoreError(f"[{op}] {_shortened(path)!r}: {error}; choose another name") from error


def _shortened(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"{text[:80]}… ({len(text)} characters)"


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except (RuntimeError, ValueError) as error:
        raise StoreError(f"[store] {text!r}: {error}; write the whole path") from error


def _open_object(x: Any, direct: bool | None) -> Store:
    if is_tensor(x):
        from accelera.stores.tensor import open_tensor

        return open_tensor(x, direct)
    if isinstance(x, np.ndarray):
        from accelera.stores.mapped import open_mapped

        return open_mapped(x, direct) or ArrayStore(x)
    found = open_foreign(x)
    if found is not None:
        return found if isinstance(found, Store) else _open_object(found, direct)
    if isinstance(x, _SEQUENCES):
        return ArrayStore(_from_sequence(x))
    if hasattr(x, "__array__"):
        return ArrayStore(np.asarray(within_small(x)))
    raise DTypeError(
        f"[open_store] a {type(x).__name__}: give a path, a NumPy array, a torch tensor or nested lists"
    )


def _from_sequence(x: Any) -> np.ndarray[Any, Any]:
    """Return nested lists of numbers as an array."""
    if isinstance(x, (list, tuple)) and any(np.ma.is_masked(each) for each in x):
        raise DTypeError("[open_store] a list with masked elements; fill them: np.ma.filled(x, value)")
    try:
        return np.asarray(x)
    except (ValueError, TypeError, OverflowError) as error:
        raise DTypeError(f"[open_store] a list must hold numbers in rows of equal length: {error}") from error


def _opened_result(out: Any) -> Store:
    if isinstance(out, Store):
        return out
    if is_tensor(out):
        from accelera.stores.tensor import open_tensor_result

        return open_tensor_result(out)
    if isinstance(out, np.ndarray):
        from accelera.stores.mapped import open_mapped

        return open_mapped(out, False, writable=True) or ArrayStore(out, name="out")
    refuse_foreign_result(out)
    found = open_foreign(out)
    if isinstance(found, Store):
        return found
    raise DTypeError(
        f"[out] a {type(out).__name__}, into which nothing can be written; give a path, a NumPy array, a "
        "tensor, a zarr.Array or an h5py.Dataset, or leave out= away for a new array"
    )


def _fill_object(target: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OutputStore:
    if is_tensor(target):
        from accelera.stores.tensor import fill_tensor

        return fill_tensor(target, shape, dtype)
    if isinstance(target, np.ndarray):
        return ArrayOutput(target, shape, dtype)
    raise DTypeError(
        f"[create_store] a {type(target).__name__}: give a path, a NumPy array, a torch tensor or None"
    )


def is_tensor(x: Any) -> bool:
    """Return whether ``x`` is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _whole_offset(offset: int | np.integer[Any]) -> int:
    """Return an offset of any integer type, NumPy's among them, as an integer that cannot overflow."""
    try:
        return operator.index(offset)
    except TypeError as error:
        raise StoreFormatError(f"[open_store] offset={offset!r}: {error}; give a whole number") from error


def _whole(shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError as error:
        raise ShapeError(
            f"[store] shape {shape!r}: {error}; give whole numbers, one for each axis"
        ) from error
    return check_shape("store", sizes)


def _checked(store: Store, shape: tuple[int, ...] | None, dtype: np.dtype[Any] | None) -> Store:
    check_shape(f"open_store {store.name}", store.shape, store.dtype.itemsize)
    if shape is not None and store.shape != shape:
        raise ShapeError(f"[open_store] {store.name} has shape {store.shape}, not {shape}; leave shape out")
    if dtype is not None and store.dtype != dtype:
        raise DTypeError(f"[open_store] {store.name} holds {store.dtype}, not {dtype}; leave dtype out")
    return store
