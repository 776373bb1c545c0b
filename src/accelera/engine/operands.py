"""Operands and results: opened, checked, described for the planner, and watched while they are in use.

The kinds of operands are distinguished without loading torch.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from accelera.devices import Device, get_device
from accelera.engine.dtypes import HALVES, held_dtype
from accelera.engine.registry import is_matrix, unwrapped
from accelera.errors import ArgumentError, DTypeError, ShapeError, StoreChangedError, StoreError
from accelera.memory._internal import ALWAYS_FITS_BYTES, LEDGER
from accelera.plan._internal import Operand
from accelera.settings import current
from accelera.stores import Store, open_store
from accelera.stores._internal import (
    FlatFile,
    OutputStore,
    create_store,
    is_foreign,
    is_sparse,
    is_tensor,
    open_result,
    output_scratch_bytes,
    result_path,
)


def broadcast_shape(op: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape two shapes broadcast to; raises ShapeError naming both.

    >>> broadcast_shape("add", (4, 1, 3), (2, 3))
    (4, 2, 3)
    """
    try:
        return np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError as error:
        raise ShapeError(
            f"[{op}] A of shape {tuple(a)} and B of shape {tuple(b)} do not broadcast: "
            "counted from the last, axes must be equal or 1"
        ) from error


_DIRECT = {"auto": None, "always": True, "never": False}


def open_operand(operand: Any) -> Store:
    """Return the store of any operand, with direct I/O (around the page cache) as the settings say."""
    return open_store(unwrapped(operand), direct=direct_io())


def direct_io() -> bool | None:
    """Return whether file I/O bypasses the page cache: always, never, or (None) where it is faster."""
    return _DIRECT[current().direct_io]


def lies_in_store(operand: Any) -> bool:
    """Return whether ``operand`` is a path, a store or an array that no tensor library can take as it is.

    Such are the arrays of Zarr, h5py, dask and xarray, SciPy's sparse ones, and those in the other byte
    order.
    """
    if operand is None or is_matrix(operand) or is_tensor(operand):
        return False
    if isinstance(operand, np.ndarray):
        return not operand.dtype.isnative
    known = isinstance(operand, (str, PathLike, Store, FileResult))
    return known or is_foreign(operand) or is_sparse(operand)


@dataclass(frozen=True)
class FileResult:
    """A new Zarr array for a result, with its layout."""

    path: str | PathLike[str]
    chunks: tuple[int, ...] | None = None
    """Extent of a chunk along each axis; None for the usual 4 MiB."""
    codec: str | None = None
    """How chunks are compressed, such as ``"zstd"`` or ``"gzip:6"``; None stores them as they are."""

    def chunks_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the chunk shape for a result of ``shape``; raises ShapeError when it has other axes."""
        chunks = self.chunks or ()
        if len(chunks) != len(shape) or any(each < 1 for each in chunks):
            raise ShapeError(
                f"[out] chunks={chunks} for a result of shape {shape}: one positive size per axis is needed"
            )
        return tuple(min(each, max(1, size)) for each, size in zip(chunks, shape, strict=True))


def file_result(out: Any, chunks: Any, codec: str | None) -> Any:
    """Return ``out``, as a ``FileResult`` where a layout of a new Zarr array is given.

    Raises ArgumentError when ``chunks`` or ``codec`` is given for anything else.
    """
    if chunks is None and codec is None:
        return out
    if not isinstance(out, (str, PathLike)) or result_path(out).suffix.lower() != ".zarr":
        raise ArgumentError(
            f"[out] chunks={chunks!r} and codec={codec!r} lay out a new Zarr array; give out= a name that "
            "ends in .zarr, or leave them out"
        )
    try:
        sizes = None if chunks is None else tuple(operator.index(each) for each in chunks)
    except TypeError as error:
        raise ShapeError(
            f"[out] chunks={chunks!r}: {error}; give whole numbers, one for each axis"
        ) from error
    return FileResult(out, sizes, codec)


_MATRIX_KINDS = "fciu"


def factor_dtype(dtype: np.dtype[Any], device: Device) -> np.dtype[Any]:
    """Return the element type in which ``device`` holds factors: a half type where it multiplies them."""
    return dtype if dtype in HALVES and device.multiplies(dtype) else held_dtype(dtype)


def multiplier(device: Device, dtype: np.dtype[Any]) -> Device:
    """Return ``device`` when it multiplies blocks of elements of ``dtype``, else the CPU."""
    return device if device.multiplies(factor_dtype(dtype, device)) else get_device("cpu")


def describe(name: str, store: Store, device: Device, held: np.dtype[Any]) -> Operand:
    """Return the planner's description of ``store`` for a run on ``device``."""
    layout = store.layout
    resident = store.resident() if device.host_memory and store.dtype == held else None
    return Operand(
        name=name,
        shape=store.shape,
        dtype=store.dtype,
        held_dtype=held,
        tier=store.tier,
        order=layout.order,
        chunk=layout.chunk,
        dense=layout.dense,
        scratch_bytes=store.scratch_bytes,
        cache_bytes=store.cache_bytes,
        in_place=resident is not None and device.can_take(resident),
    )


def check_matmul_dtypes(a: Store, b: Store) -> np.dtype[Any]:
    """Return the common element type of a product.

    Raises DTypeError when they differ or cannot be multiplied.
    """
    if a.dtype != b.dtype:
        raise DTypeError(
            f"[matmul] A is {a.dtype} and B is {b.dtype}: a product takes one element type; convert one of "
            f"them first (engine.copy(x, out=..., dtype=...), or x.astype(...))"
        )
    if a.dtype not in HALVES and a.dtype.kind not in _MATRIX_KINDS:
        raise DTypeError(f"[matmul] {a.dtype} cannot be multiplied; use a float, complex or integer type")
    return a.dtype


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of ``a @ b`` by the rules of ``torch.matmul``.

    Raises ShapeError when they do not fit.

    >>> matmul_shape((5, 2, 3), (3, 4)), matmul_shape((3,), (3,)), matmul_shape((2, 3), (3,))
    ((5, 2, 4), (), (2,))
    """
    if not a or not b:
        raise ShapeError(f"[matmul] shapes {a} and {b}: both need at least one axis; multiply scalars with *")
    inner_b = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner_b:
        raise ShapeError(
            f"[matmul] shapes {a} and {b} do not fit: the last axis of A has {a[-1]}, the "
            f"{'second to last' if len(b) > 1 else 'only'} axis of B has {inner_b}; they must be equal"
            f"{_transposed_hint(a, b)}"
        )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ShapeError(
            f"[matmul] batch axes {a[:-2]} and {b[:-2]} of shapes {a} and {b} do not broadcast; "
            f"each pair must be equal or 1"
        ) from None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _transposed_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    if len(b) > 1 and a[-1] == b[-1]:
        return ". A @ B.T fits"
    return ". A.T @ B fits" if len(a) > 1 and len(b) > 1 and a[-2] == b[-2] else ""


def as_matrices(a: Store, b: Store) -> tuple[Store, Store]:
    """Return views of A and B with the same number of axes, at least two."""
    if a.ndim == 1:
        a = a[None, :]
    if b.ndim == 1:
        b = b[:, None]
    rank = max(a.ndim, b.ndim)
    return _with_rank(a, rank), _with_rank(b, rank)


def result_view(store: Store, a_ndim: int, b_ndim: int) -> Store:
    """Return a view of the result with both matrix axes, also where an operand is a vector."""
    if b_ndim == 1:
        store = store[..., None]
    if a_ndim == 1:
        store = store[..., None, :]
    return store


def _with_rank(store: Store, rank: int) -> Store:
    missing = rank - store.ndim
    return store[(None,) * missing + (slice(None),) * store.ndim] if missing else store


@dataclass(frozen=True)
class OperandWatch:
    """Checks that operands stay unchanged while they are read."""

    stores: Mapping[str, Store]
    """Operands by their names in messages."""
    fingerprints: Mapping[str, Any]
    """Fingerprint of each operand when the watch began; None where it has none."""
    written_inode: int | None = None
    """Inode of the result's file, where it existed before the run."""

    @classmethod
    def over(cls, stores: Mapping[str, Store], *, arrays: bool, written: Store | None = None) -> OperandWatch:
        """Return a watch that begins now; with ``arrays`` it also fingerprints arrays in memory.

        ``written`` is the store of the result: operands in the same file are compared by their bytes alone,
        not by times.
        """
        for store in stores.values():
            store.require_current()
        inode = None if written is None else _inode(written)
        return cls(stores, fingerprints(stores, arrays=arrays, written_inode=inode), inode)

    def require_unchanged(self, op: str) -> None:
        """Raise StoreChangedError when a file that was read has changed since the watch began.

        Files and Zarr arrays are checked, whichever view of them was read. Arrays in memory are not: the
        caller must not change them while they are read.
        """
        for name, store in self.stores.items():
            now = _fingerprint(store, self.written_inode)
            if now is not None and now != self.fingerprints[name]:
                raise StoreChangedError(
                    f"[{op}] operand {name} ({store.name}) was overwritten while it was read "
                    f"({differences(self.fingerprints[name], now)}): the result would be of neither its old "
                    f"nor its new contents, so it is thrown away; run again when nobody writes to it"
                )


def fingerprints(
    stores: Mapping[str, Store], *, arrays: bool, written_inode: int | None = None
) -> dict[str, Any]:
    """Return each store's own identity with a sample of its contents.

    For a store without an identity (memory): a checksum of all elements, or None with ``arrays=False``.
    """
    found: dict[str, Any] = {name: _fingerprint(store, written_inode) for name, store in stores.items()}
    if arrays:
        without_identity = [name for name, each in found.items() if each is None]
        found |= {name: {"kind": "contents", "crc32": stores[name].checksum()} for name in without_identity}
    return found


def _fingerprint(store: Store, written_inode: int | None) -> Mapping[str, Any] | None:
    own = store.fingerprint()
    if own is None:
        return None
    found = {**own, "sample": store.sample()}
    is_written = written_inode is not None and any(_inode(each) == written_inode for each in store.sources)
    return _without_times(found) if is_written else found


def _inode(store: Store) -> int | None:
    own = store.fingerprint()
    return None if own is None else own.get("inode")


def _without_times(found: Any) -> Any:
    """Return a fingerprint without the times at which its files were changed."""
    if isinstance(found, Mapping):
        return {name: _without_times(each) for name, each in found.items() if name != "mtime_ns"}
    return [_without_times(each) for each in found] if isinstance(found, list) else found


def differences(then: Any, now: Any) -> str:
    """Return which parts of a fingerprint differ, in words."""
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return f"it was {then}, now {now}"
    parts = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    return ", ".join(f"{key} was {then.get(key)}, now {now.get(key)}" for key in parts)


_CHUNK_BYTES = 4 << 20
_OVERLAP_WORK = 10_000
"""Most work of NumPy's search for an element that two strided arrays share."""


@dataclass(frozen=True)
class ResultTarget:
    """The place of a result, before it exists."""

    out: Any
    """None for new memory, an array, a store, or a path (within a ``FileResult`` when its layout matters)."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def path(self) -> Path | None:
        """The file, when the result goes to one; links are followed."""
        named = self._named
        return None if named is None else result_path(named)

    @property
    def _named(self) -> Any:
        """The path as it was given, with any ``::key``; None when the result goes elsewhere."""
        named = self.out.path if isinstance(self.out, FileResult) else self.out
        return named if isinstance(named, (str, os.PathLike)) else None

    @property
    def new_bytes(self) -> int:
        """Bytes of RAM that the result itself will take."""
        if self.out is not None:
            return 0
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk(self) -> tuple[int, ...] | None:
        """Chunk shape of a new Zarr array: the longest axis halved until it has 4 MiB; None elsewhere."""
        if self.path is None or self.path.suffix.lower() != ".zarr":
            return None
        if isinstance(self.out, FileResult) and self.out.chunks is not None:
            return self.out.chunks_for(self.shape)
        chunk = [max(1, size) for size in self.shape]
        while math.prod(chunk) * self.dtype.itemsize > _CHUNK_BYTES:
            longest = chunk.index(max(chunk))
            chunk[longest] = -(-chunk[longest] // 2)
        return tuple(chunk)

    @property
    def scratch_bytes(self) -> int:
        """The most host memory that one write to the file takes besides its data."""
        return output_scratch_bytes(self._named, self.chunk, self.dtype)

    def check(self, op: str, inputs: list[Store], *, resume: bool = False) -> None:
        """Raise unless the result can be written there without overwriting an input."""
        if resume and self.path is None:
            raise StoreError(f"[{op}] resume=True: only results in files can be resumed; give out= a path")
        if self.path is not None:
            for store in (each for operand in inputs for each in operand.sources):
                if _same_file(store.name, self.path):
                    raise StoreError(
                        f"[{op}] out={str(self.path)!r} is also an operand; write to another name"
                    )
        elif self.out is not None:
            self._check_given(op, inputs)

    def watch(self, operands: Mapping[str, Store]) -> OperandWatch:
        """Return the watch over the operands until the result is published."""
        written = self.given() if self.path is None and self.out is not None else None
        return OperandWatch.over(operands, arrays=self.path is not None, written=written)

    def given(self) -> Store:
        """Return the existing store that takes the result.

        Raises StoreError or DTypeError when it cannot be written.
        """
        return open_result(self.out)

    def _check_given(self, op: str, inputs: list[Store]) -> None:
        given = self.given()
        if given.shape != self.shape:
            raise ShapeError(f"[{op}] out has shape {given.shape}; the result has shape {self.shape}")
        if given.dtype != self.dtype:
            raise DTypeError(f"[{op}] out is {given.dtype}; the result is {self.dtype}")
        for store in inputs:
            if shares_elements(given, store):
                raise StoreError(
                    f"[{op}] out shares memory with operand {store.name}; give it memory of its own"
                )

    def open(self, *, resume: bool) -> Store:
        """Create or open the place.

        Raises StoreError when it cannot be written, before anything is computed.
        """
        if self._named is not None:
            return create_store(
                self._named,
                self.shape,
                self.dtype,
                resume=resume,
                chunk=self.chunk,
                codec=self.out.codec if isinstance(self.out, FileResult) else None,
                direct=direct_io(),
            )
        if self.out is None:
            array = np.empty(self.shape, self.dtype)
            if array.nbytes > ALWAYS_FITS_BYTES:
                LEDGER.reserve_while("result", "engine results", array.nbytes, array)
            return open_store(array)
        return self.given()

    def opened(self) -> Store:
        """Open the result that exists in its file."""
        assert self._named is not None, "called for results in files only"
        return open_store(self._named, shape=self.shape, dtype=self.dtype, direct=direct_io())


def publish(store: Store) -> None:
    """Make a complete result visible under its name."""
    if isinstance(store, OutputStore):
        store.commit()
    else:
        store.flush()


def abandon(store: Store, *, keep_partial: bool) -> None:
    """Discard a result that will not be complete, or keep its partial file."""
    if isinstance(store, OutputStore):
        store.abort(keep_partial=keep_partial)


def shares_elements(one: Store, other: Store) -> bool:
    """Return whether two stores share elements of the same memory or file, as far as can be determined."""
    return any(_may_share(mine, theirs) for mine in one.sources for theirs in other.sources)


def _may_share(one: Store, other: Store) -> bool:
    mine, theirs = one.resident(), other.resident()
    if mine is not None and theirs is not None:
        return _overlap(mine, theirs)
    base, (other_base, _) = one.viewing()[0], other.viewing()
    if isinstance(base, FlatFile) and isinstance(other_base, FlatFile):
        apart = (
            base.placement.end <= other_base.placement.begin
            or other_base.placement.end <= base.placement.begin
        )
        return not apart and _same_file(base.name, Path(other_base.name))
    return base is other_base or (base.tier == "disk" and _same_file(base.name, Path(other_base.name)))


def _overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays share an element; True where that is too hard to decide."""
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _same_file(name: str, path: Path) -> bool:
    try:
        return os.path.samefile(name.split("::")[0], str(path).split("::")[0])
    except (OSError, ValueError):
        return False
