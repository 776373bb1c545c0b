"""Products of a sparse matrix of SciPy (CSR or CSC) and a dense one, in memory or in files, by a plan.

The sparse factor is used where it lies and is never made dense. The other one and the result go through
the pool in blocks, as those of any product.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from accelera._native import spmm
from accelera.devices import Device
from accelera.engine.dtypes import product_type
from accelera.engine.expression import Leaf
from accelera.engine.expression_stores import store_of
from accelera.engine.matmul import PlannedMatmul
from accelera.engine.operands import open_operand
from accelera.engine.options import USUAL, OperationOptions
from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.plan._internal import CostModel, Operand, PlanStep
from accelera.stores import Store
from accelera.stores._internal import Layout, Region, is_sparse, parse_dtype

Array = np.ndarray[Any, np.dtype[Any]]

_FLOPS_PER_S = 2e9
"""Nominal rate of the sparse kernel; what it does hangs on where the elements lie."""
_KNOWN = tuple(np.dtype(each) for each in ("f4", "f8", "c8", "c16", "i4", "i8"))


@dataclass(frozen=True)
class SparseBlock:
    """A block of a sparse matrix: indexed like an array of two axes, nothing is copied."""

    matrix: SparseStore
    rows: tuple[int, int]
    cols: tuple[int, int]

    def __getitem__(self, key: Any) -> SparseBlock:
        rows, cols = key if key[0] is not Ellipsis else (slice(None), *key[1:])[-2:]
        return SparseBlock(self.matrix, _within(self.rows, rows), _within(self.cols, cols))


@final
class SparseStore(Store):
    """A CSR or CSC matrix in RAM, as a factor of a product of elements of ``dtype``; never read as dense.

    Raises DTypeError for other formats and element types, StoreFormatError for a damaged matrix.
    """

    tier = "ram"
    name = "sparse matrix"

    def __init__(self, matrix: Any, dtype: np.dtype[Any]) -> None:
        if matrix.format not in ("csr", "csc") or len(matrix.shape) != 2:
            raise DTypeError(f"[matmul] a sparse matrix in {matrix.format}; give x.tocsr() or x.tocsc()")
        if dtype not in _KNOWN:
            raise DTypeError(
                f"[matmul] a sparse matrix in a product of {dtype}; it works in "
                f"{', '.join(map(str, _KNOWN))}: convert a factor with astype"
            )
        self.shape, self.dtype = tuple(map(int, matrix.shape)), dtype
        self.by_rows = matrix.format == "csr"
        self.pointers, self.indices = _index_arrays(matrix)
        self._values = np.ascontiguousarray(matrix.data)
        self.count = int(self.pointers[-1]) if len(self.pointers) else 0
        self._check()
        self.in_order = bool(matrix.has_sorted_indices)
        self._lock = threading.Lock()

    def _check(self) -> None:
        """Raise StoreFormatError unless every index lies in the matrix: the kernel does not look."""
        lines, others = self.shape if self.by_rows else self.shape[::-1]
        used = self.indices[: self.count]
        sound = (
            len(self.pointers) == lines + 1
            and self.pointers[0] == 0
            and bool((np.diff(self.pointers) >= 0).all())
            and len(self.indices) >= self.count <= len(self._values)
            and (not len(used) or (int(used.min()) >= 0 and int(used.max()) < others))
        )
        if not sound:
            raise StoreFormatError(
                f"[matmul] a sparse matrix of shape {self.shape} whose indices leave it; build it again"
            )

    @property
    def converted_bytes(self) -> int:
        """What a copy of the values takes where the product has another element type."""
        return 0 if self._values.dtype == self.dtype else len(self._values) * self.dtype.itemsize

    def values(self) -> Array:
        """Return the values in the product's element type, converted once."""
        with self._lock:
            if self._values.dtype != self.dtype:
                self._values = self._values.astype(self.dtype)
            return self._values

    def block(self) -> SparseBlock:
        """Return the whole matrix."""
        return SparseBlock(self, (0, self.shape[0]), (0, self.shape[1]))

    def resident(self) -> Any:
        """Return the whole matrix as something to be cut into blocks."""
        return self.block()

    def read(self, region: Region, out: Array) -> int:
        """Refuse: a product takes its elements where they lie."""
        raise StoreError(f"[read] a {self.name} is never read as a dense one; give x.toarray()")

    def write(self, region: Region, data: Array) -> int:
        """Refuse."""
        raise StoreError(f"[write] {self.name} {self.read_only}")

    @property
    def read_only(self) -> str:
        """Why nothing can be written here."""
        return "is only a factor of products"

    @property
    def layout(self) -> Layout:
        """Row by row, or column by column."""
        return Layout((0, 1) if self.by_rows else (1, 0), self.dtype.itemsize)

    def checksum(self) -> int:
        """Return a checksum of everything stored."""
        checksum = int(self.by_rows)
        for each in (self.pointers, self.indices[: self.count], self._values[: self.count]):
            checksum = zlib.crc32(np.ascontiguousarray(each).view(np.uint8).data, checksum)
        return checksum


@dataclass(frozen=True)
class SparseMatmul(PlannedMatmul):
    """A product one of whose factors is a ``SparseStore``."""

    @property
    def sparse(self) -> SparseStore:
        """The sparse factor."""
        return self.a if isinstance(self.a, SparseStore) else self.b  # type: ignore[return-value]

    def describe_factor(self, name: str, store: Store, device: Device, held: np.dtype[Any]) -> Operand:
        """Describe a factor: a sparse one takes no room in the pool."""
        if isinstance(store, SparseStore):
            order = store.layout.order
            return Operand(name, store.shape, store.dtype, held, "ram", order, in_place=True)
        return super().describe_factor(name, store, device, held)

    def rates(self, device: Device) -> CostModel:
        """Return the cost model with the rate of dense arithmetic that takes as long as the sparse one."""
        density = max(self.sparse.count, 1) / max(math.prod(self.sparse.shape), 1)
        rate = _FLOPS_PER_S / density
        return replace(super().rates(device), flops_per_s=rate, nominal_flops_per_s=rate)

    def beside(self) -> Mapping[str, int]:
        """Return what is taken besides blocks: values in another element type."""
        size = self.sparse.converted_bytes
        return {"values": size} if size else {}

    def kernel(self, device: Device, step: PlanStep, arrays: Sequence[Any], out: Any) -> None:
        """Compute one step."""
        (a, b), ((a0, a1), (b0, b1)) = arrays, step.task
        a, b, accumulate = a[..., a0:a1], b[..., b0:b1, :], not step.first
        if isinstance(a, SparseBlock):
            _multiply(a, False, b, out, accumulate)
        else:
            _multiply(b, True, a.T, out.T, accumulate)


def _multiply(block: SparseBlock, turned: bool, dense: Array, out: Array, accumulate: bool) -> None:
    """Compute ``out (+)= block @ dense``; ``turned`` takes the block's transpose instead."""
    matrix = block.matrix
    rows, cols = (block.cols, block.rows) if turned else (block.rows, block.cols)
    by_rows = matrix.by_rows != turned
    spmm(
        matrix.pointers,
        matrix.indices[: matrix.count],
        matrix.values()[: matrix.count],
        by_rows,
        matrix.in_order,
        rows,
        cols,
        dense,
        out,
        accumulate,
    )


def sparse_product(a: Any, b: Any, out: Any = None, options: OperationOptions = USUAL) -> SparseMatmul:
    """Return the product of a sparse matrix and a dense operand, in either order, checked and ready to plan.

    Raises DTypeError for two sparse ones, ShapeError for stacks of matrices.
    """
    if is_sparse(a) and is_sparse(b):
        raise DTypeError(
            "[matmul] two sparse matrices: their product is sparse, and SciPy makes it (a @ b); make one "
            "dense with toarray() for a dense result"
        )
    sparse, dense = (a, open_operand(b)) if is_sparse(a) else (b, open_operand(a))
    if dense.ndim > 2:
        raise ShapeError(f"[matmul] a sparse matrix and shape {dense.shape}: a matrix or vector is needed")
    dtype = product_type(parse_dtype(sparse.dtype, op="matmul"), dense.dtype)
    factor = SparseStore(sparse, dtype)
    other = dense if dense.dtype == dtype else store_of(Leaf(dense).astype(dtype))
    left, right = (factor, other) if is_sparse(a) else (other, factor)
    return SparseMatmul(left, right, out, options)


def _index_arrays(matrix: Any) -> tuple[Array, Array]:
    """Return pointers and indices as arrays of one integer type."""
    pointers, indices = np.ascontiguousarray(matrix.indptr), np.ascontiguousarray(matrix.indices)
    if pointers.dtype == indices.dtype and pointers.dtype in (np.int32, np.int64):
        return pointers, indices
    return pointers.astype(np.int64), indices.astype(np.int64)


def _within(bounds: tuple[int, int], part: slice) -> tuple[int, int]:
    start, stop, _ = part.indices(bounds[1] - bounds[0])
    return bounds[0] + start, bounds[0] + stop
