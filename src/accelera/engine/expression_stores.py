"""Stores behind expressions: computed as they are read, or kept between two stages."""

from __future__ import annotations

import math
import os
import queue
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera._descriptors import reserve_space
from accelera.engine.dtypes import cast_into, cast_itemsize, product_type
from accelera.engine.elementwise import PIECE_BYTES, piece_shape, pieces
from accelera.engine.expression import Expr, Leaf
from accelera.engine.program import ElementwiseProgram, Scratch
from accelera.errors import StoreError
from accelera.stores import Store
from accelera.stores._internal import (
    STAGING_BYTES_PER_THREAD,
    ArrayStore,
    FlatFile,
    Layout,
    Placement,
    Region,
    inner_region,
    region_shape,
)
from accelera.units import format_bytes

Array = np.ndarray[Any, np.dtype[Any]]


def store_of(expr: Expr) -> Store:
    """Return the store of an operand, or one that computes an element-wise expression as it is read."""
    return expr.store if isinstance(expr, Leaf) else ComputedStore(expr)


def of_one_type(a: Store, b: Store) -> tuple[Store, Store]:
    """Return two factors of a product in their common type, converted as they are read.

    Raises DTypeError for truth values, and where there is no such type.
    """
    if a.dtype == b.dtype:
        return a, b
    dtype = product_type(a.dtype, b.dtype)
    return store_of(Leaf(a).astype(dtype)), store_of(Leaf(b).astype(dtype))


@final
class ComputedStore(Store):
    """An element-wise expression of stores, as an operand of an operation that is not element-wise.

    A region is computed piece by piece, in scratch buffers of the reading thread. A region read twice is
    computed twice.
    """

    name = "expression"

    def __init__(self, expr: Expr) -> None:
        self._program = ElementwiseProgram(expr)
        self.shape, self.dtype = expr.shape, expr.dtype
        self._leaves = [self._program.view(index) for index in range(len(self._program.leaves))]
        self.tier = "disk" if any(each.tier == "disk" for each in self._leaves) else "ram"
        self._free_buffers: queue.SimpleQueue[_PieceBuffers] = queue.SimpleQueue()

    def read(self, region: Region, out: Array) -> int:
        """Compute ``region`` into ``out``; return its bytes."""
        try:
            buffers = self._free_buffers.get_nowait()
        except queue.Empty:
            buffers = _PieceBuffers(self._program, self._leaves, self._elements)
        try:
            whole, target = (region, out) if self.shape else ((slice(0, 1),), out[None])
            extent = region_shape(whole)
            with np.errstate(all="ignore"):
                for piece in pieces(extent, self._piece(extent)):
                    buffers.compute(inner_region(whole, piece), target[piece])
        finally:
            self._free_buffers.put(buffers)
        return out.nbytes

    @property
    def _elements(self) -> int:
        """Most elements of a piece: few enough for the caches, but at least one chunk of a leaf."""
        plain = PIECE_BYTES // max(value.dtype.itemsize for value in self._program.values)
        return max(plain, *(math.prod(chunk) for chunk in self._chunks()), 1)

    def _chunks(self) -> list[tuple[int, ...]]:
        return [each.layout.chunk or (1,) for each in self._leaves if each.resident() is None] or [(1,)]

    def _piece(self, extent: tuple[int, ...]) -> tuple[int, ...]:
        chunk = next(
            (each.layout.chunk for each in self._full_size_leaves() if each.layout.chunk is not None), None
        )
        if chunk is not None:
            return tuple(min(part, size) or 1 for part, size in zip(chunk, extent, strict=True))
        return piece_shape(extent, [self._order], (), self._elements)

    def _full_size_leaves(self) -> list[Store]:
        """Return the leaves that are not in RAM and have the shape of the expression."""
        return [
            each for each in self._leaves if each.resident() is None and each.shape == self._program.shape
        ]

    @property
    def _order(self) -> tuple[int, ...]:
        plain = tuple(range(len(self._program.shape)))
        return next((tuple(each.layout.order) for each in self._full_size_leaves()), plain)

    def write(self, region: Region, data: Array) -> int:
        """Raise StoreError: an expression cannot be written."""
        raise StoreError(f"[write] {self.name} {self.read_only}")

    @property
    def read_only(self) -> str:
        """Why nothing can be written here."""
        return "is computed and cannot be written"

    @property
    def layout(self) -> Layout:
        """Layout of the first leaf that is not in RAM and has this shape; else row-major."""
        found = next((each.layout for each in self._full_size_leaves()), None)
        if found is None or not self.shape:
            return Layout(tuple(range(len(self.shape))), self.dtype.itemsize)
        return Layout(found.order, self.dtype.itemsize, found.chunk, found.dense)

    @property
    def scratch_bytes(self) -> int:
        """Bytes per thread: buffers for values and leaves, and the scratch of reading a leaf."""
        beside = max(self._program.cast_itemsize, cast_itemsize(self._program.dtype, self.dtype))
        held = [each.dtype.itemsize for each in self._leaves if each.resident() is None]
        itemsize = sum(self._program.slot_itemsizes) + sum(held) + beside
        return self._elements * itemsize + max((each.scratch_bytes for each in self._leaves), default=0)

    @property
    def sources(self) -> tuple[Store, ...]:
        """The stores that the leaves come from."""
        return tuple(source for each in self._leaves for source in each.sources)

    def fingerprint(self) -> Mapping[str, Any] | None:
        """Return the program and its operands' fingerprints; None when an operand has none."""
        found = [each.fingerprint() for each in self._leaves]
        if any(each is None for each in found):
            return None
        parts = [dict(each) for each in found if each is not None]
        return {"kind": "computed", "program": self._program.text(), "of": parts}

    def use_direct(self, direct: bool | None) -> None:
        """Set direct I/O for the operands."""
        for each in self._leaves:
            each.use_direct(direct)


class _PieceBuffers:
    """The buffers in which one thread computes pieces."""

    def __init__(self, program: ElementwiseProgram, leaves: list[Store], elements: int) -> None:
        self._program = program
        self._leaves = leaves
        self._scratch = Scratch(program, elements, tuple(range(len(program.shape))))
        self._residents = [each.resident() for each in leaves]
        self._buffers = [
            None if resident is not None else np.empty(elements * each.dtype.itemsize, np.uint8)
            for each, resident in zip(leaves, self._residents, strict=True)
        ]

    def compute(self, region: Region, out: Array) -> None:
        """Compute ``region`` of the expression into ``out``."""
        leaves = [self._leaf(index, region) for index in range(len(self._leaves))]
        computed = self._program.values[self._program.root].computed
        if computed and out.dtype == self._program.dtype:
            self._scratch.run(leaves, out.shape, out)
        else:
            cast_into(self._scratch.run(leaves, out.shape), out)

    def _leaf(self, index: int, region: Region) -> Array:
        store, resident = self._leaves[index], self._residents[index]
        part = tuple(
            slice(0, 1) if size == 1 else axis for axis, size in zip(region, store.shape, strict=True)
        )
        if resident is not None:
            return resident[part]
        shape = region_shape(part)
        buffer = self._buffers[index]
        assert buffer is not None
        count = math.prod(shape) * store.dtype.itemsize
        found: Array = buffer[:count].view(store.dtype).reshape(shape)
        store.read(part, found)
        return found


@final
class Intermediate(Store):
    """An array between two stages, row by row; it takes no memory or disk before the first stage writes it.

    It is in RAM unless ``store_in`` names a folder: a file there has no name, and vanishes with the
    process, however that ends.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name = name
        self.shape, self.dtype = shape, dtype
        self.tier = "ram"
        self._folder: Path | None = None
        self._file: FlatFile | None = None
        self._array: Array | None = None

    def store_in(self, folder: Path | None) -> None:
        """Choose the place of the array: a file in ``folder``, or (None) RAM."""
        self._folder = folder
        self.tier = "ram" if folder is None else "disk"

    @property
    def ram_bytes(self) -> int:
        """Bytes of the budget that it takes while it is needed."""
        return self.nbytes if self._folder is None else 0

    def resident(self) -> Array | None:
        """Return the array when it is in RAM; its pages are backed when they are first written."""
        if self._folder is not None:
            return None
        if self._array is None:
            self._array = np.empty(self.shape, self.dtype)
        return self._array

    def read(self, region: Region, out: Array) -> int:
        """Copy ``region`` into ``out``; return its bytes."""
        return self._open().read(region, out)

    def write(self, region: Region, data: Array) -> int:
        """Copy ``data`` into ``region``; return its bytes."""
        return self._open().write(region, data)

    def _open(self) -> Store:
        array = self.resident()
        if array is not None:
            return ArrayStore(array, name=self.name)
        if self._file is None:
            self._file = self._unnamed_file()
        return self._file

    def _unnamed_file(self) -> FlatFile:
        folder = str(self._folder)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                descriptor = os.dup(file.fileno())
            reserve_space(descriptor, max(self.nbytes, 1))
        except OSError as error:
            raise StoreError(
                f"[evaluate] intermediate {self.name} needs {format_bytes(self.nbytes)} in {folder}: "
                f"{error.strerror}; free some space, give a larger budget, or set ACCELERA_SPILL to a folder "
                "on another disk"
            ) from error
        return FlatFile(
            Path(folder) / self.name, descriptor, Placement.dense(self.shape, self.dtype), writable=True
        )

    def release(self) -> None:
        """Release the memory or the disk space."""
        self._array = None
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def layout(self) -> Layout:
        """Row-major."""
        strides = Placement.dense(self.shape, self.dtype).strides
        return Layout.of_strides(self.shape, strides, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """The staging buffer of the calling thread, for a file."""
        return 0 if self._folder is None else STAGING_BYTES_PER_THREAD
