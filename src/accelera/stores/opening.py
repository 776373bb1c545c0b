"""``open_store`` and ``create_store``: from what a user holds to a store."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from accelera._native import STAGING_BYTES_PER_THREAD
from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores.array import ArrayOutput, ArrayStore
from accelera.stores.contract import OutputStore, Store
from accelera.stores.dtypes import parse_dtype
from accelera.stores.formats import Source, Target, format_of


def open_store(
    x: Any,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    offset: int = 0,
    key: str | None = None,
    direct: bool | None = None,
) -> Store:
    """Return a store over ``x`` without copying it.

    ``x`` is a path (``.npy``, ``.safetensors``, ``.bin`` ``.raw`` ``.dat``, ``.zarr`` or a folder that
    holds a Zarr array), a NumPy array or memmap, a torch tensor, nested lists of numbers, or a store,
    which is returned as it is. ``"file.safetensors::name"`` and ``key`` name one of several arrays.
    ``shape``, ``dtype`` and ``offset`` describe a raw file; elsewhere ``shape`` and ``dtype`` are checked.
    ``direct`` reads files around the page cache: always, never, or (None) for what is not in it.

    Raises StoreError for files that cannot be read, StoreFormatError for damaged ones, DTypeError for
    elements that no store holds, ShapeError when the shape is not the one asked for.
    """
    wanted_dtype = None if dtype is None else parse_dtype(dtype, op="open_store")
    wanted_shape = None if shape is None else _whole(shape)
    if isinstance(x, Store):
        store = x
    elif isinstance(x, (str, PathLike)):
        path, key = split_key(x, key)
        store = format_of(path).open_path(Source(path, key, wanted_shape, wanted_dtype, offset, direct))
    else:
        if offset or key is not None:
            raise StoreFormatError("[open_store] offset and key describe files; leave them out for arrays")
        store = _open_object(x, direct)
    return _checked(store, wanted_shape, wanted_dtype)


def create_store(
    target: str | PathLike[str] | np.ndarray[Any, Any] | None,
    shape: Sequence[int],
    dtype: Any,
    *,
    resume: bool = False,
    order: str = "C",
    align: int = 4096,
    chunk: Sequence[int] | None = None,
    direct: bool | None = None,
) -> OutputStore:
    """Begin a result of ``shape`` and ``dtype``.

    ``target`` is a path (the format follows from its suffix), a NumPy array or torch tensor to fill,
    or None for a new array in RAM. A file is written as ``<name>.partial`` beside its target, its space
    is reserved at once, and ``commit`` puts it in place. ``resume`` goes on with the partial file of an
    interrupted run. ``order="F"`` makes the first axis the fastest. The data begins at a multiple of
    ``align`` bytes. ``chunk`` is the chunk shape of a Zarr result.

    Raises StoreError, before anything is computed, when the target cannot be written.
    """
    sizes, element = _whole(shape), parse_dtype(dtype, op="create_store")
    if order not in ("C", "F"):
        raise StoreFormatError(f"[create_store] order={order!r}; it is 'C' or 'F'")
    if isinstance(target, (str, PathLike)):
        path, key = split_key(target, None)
        pieces = None if chunk is None else _whole(chunk)
        wish = Target(path, sizes, element, key, order, align, pieces, resume, direct)
        output: OutputStore = format_of(path).create_path(wish)
        return output
    if resume:
        raise StoreError("[create_store] resume=True: only results in files can be resumed; give a path")
    if target is None:
        return ArrayOutput(np.empty(sizes, element, order="F" if order == "F" else "C"), sizes, element)
    return _fill_object(target, sizes, element)


def output_scratch_bytes(target: str | PathLike[str]) -> int:
    """Return the most host memory that one write to a new file at ``target`` takes besides its data."""
    path, _ = split_key(target, None)
    scratch: int = getattr(format_of(path), "SCRATCH_BYTES", STAGING_BYTES_PER_THREAD)
    return scratch


def remove_leftovers(target: str | PathLike[str]) -> None:
    """Remove what a run that was killed after it published ``target`` has left beside it."""
    path, _ = split_key(target, None)
    remove = getattr(format_of(path), "remove_leftovers", None)
    if remove is not None:
        remove(path)


def split_key(x: str | PathLike[str], key: str | None) -> tuple[Path, str | None]:
    """Return the path and the name in ``"path::name"``, or ``key``; they must not differ."""
    text, mark, name = str(fspath(x)).partition("::")
    if mark and key not in (None, name):
        raise StoreFormatError(
            f"[open_store] {x} names {name!r}, key={key!r} another array; give one of them"
        )
    return Path(text).expanduser(), name if mark else key


def _open_object(x: Any, direct: bool | None) -> Store:
    if _is_tensor(x):
        from accelera.stores.tensor import open_tensor

        return open_tensor(x)
    if isinstance(x, np.ndarray):
        from accelera.stores.memmap import open_mapped

        return open_mapped(x, direct) or ArrayStore(x)
    if isinstance(x, (list, tuple, int, float, complex, np.generic)) or hasattr(x, "__array__"):
        return ArrayStore(np.asarray(x))
    raise DTypeError(
        f"[open_store] a {type(x).__name__}: give a path, a NumPy array, a torch tensor or nested lists"
    )


def _fill_object(target: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OutputStore:
    if _is_tensor(target):
        from accelera.stores.tensor import fill_tensor

        return fill_tensor(target, shape, dtype)
    if isinstance(target, np.ndarray):
        return ArrayOutput(target, shape, dtype)
    raise DTypeError(
        f"[create_store] a {type(target).__name__}: give a path, a NumPy array, a torch tensor or None"
    )


def _is_tensor(x: Any) -> bool:
    """Whether ``x`` is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _whole(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(operator.index(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ShapeError(f"[store] shape {sizes}: no axis can be negative")
    return sizes


def _checked(store: Store, shape: tuple[int, ...] | None, dtype: np.dtype[Any] | None) -> Store:
    if shape is not None and store.shape != shape:
        raise ShapeError(f"[open_store] {store.name} has shape {store.shape}, not {shape}; leave shape out")
    if dtype is not None and store.dtype != dtype:
        raise DTypeError(f"[open_store] {store.name} holds {store.dtype}, not {dtype}; leave dtype out")
    return store
