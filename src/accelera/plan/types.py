"""Parts of a plan: descriptions of operands and blocks (shapes, layouts, sizes), steps and the forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelera.chunking._internal import Region


@dataclass(frozen=True)
class Operand:
    """Description of one array of an operation."""

    name: str
    """Its name in reports."""
    shape: tuple[int, ...]
    """Its shape, matrix axes last."""
    dtype: np.dtype[Any]
    """Element type in its store."""
    held_dtype: np.dtype[Any]
    """Element type of its blocks in the pool (f32 for half types)."""
    tier: str = "disk"
    """The tier of its store: ``"disk"``, ``"ram"`` or a device name."""
    order: tuple[int, ...] = ()
    """Axes from slowest to fastest as they lie; empty means row-major."""
    chunk: tuple[int, ...] | None = None
    """Chunk shape of a chunked store."""
    dense: bool = True
    """Whether neighbours along the fastest axis are adjacent."""
    scratch_bytes: int = 0
    """Host memory that one transfer takes besides the block."""
    in_place: bool = False
    """True when blocks are used where they lie and need no room in the pool."""
    cache_bytes: int = 0
    """Host memory that the store's library keeps between transfers."""

    @property
    def nbytes(self) -> int:
        """Size in its store, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes from slowest to fastest."""
        return self.order or tuple(range(len(self.shape)))

    def run_bytes(self, extent: tuple[int, ...]) -> int:
        """Return the longest contiguous piece, in bytes, of a block of shape ``extent``."""
        if not self.dense:
            return self.dtype.itemsize
        if self.chunk is not None:
            return math.prod(self.chunk) * self.dtype.itemsize
        run = self.dtype.itemsize
        for axis in reversed(self.axes):
            run *= extent[axis]
            if extent[axis] < self.shape[axis]:
                break
        return run

    def gap_bytes(self, extent: tuple[int, ...]) -> int:
        """Return the bytes between two neighbouring contiguous pieces of a block of shape ``extent``."""
        run = self.dtype.itemsize
        for axis in reversed(self.axes):
            if extent[axis] < self.shape[axis]:
                return run * (self.shape[axis] - extent[axis])
            run *= extent[axis]
        return 0

    def stored_bytes(self, extent: tuple[int, ...]) -> int:
        """Return the bytes that a block of shape ``extent`` moves to or from the store."""
        return math.prod(extent) * self.dtype.itemsize

    def held_bytes(self, extent: tuple[int, ...]) -> int:
        """Return the bytes that a block of shape ``extent`` takes in the pool."""
        return 0 if self.in_place else math.prod(extent) * self.held_dtype.itemsize

    def block_order(self) -> tuple[int, ...]:
        """Return the axes of a block in the pool, slowest first, the two matrix axes innermost."""
        rank = len(self.shape)
        matrix = [axis for axis in self.axes if axis >= rank - 2]
        return (*[axis for axis in range(rank) if axis < rank - 2], *matrix)


@dataclass(frozen=True)
class OperandBlock:
    """A region of one operand that is moved and held as a whole."""

    id: int
    """Dense id within the plan; two steps that use the same region share it."""
    operand: int
    """Index into the plan's operands."""
    region: Region
    """One slice per axis of the operand."""
    held_bytes: int
    """Room it takes in the pool; 0 for a block used in place."""
    moved_bytes: int
    """Bytes read from or written to its store."""
    run_bytes: int
    """Length of its contiguous pieces in the store."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis."""
        return tuple(part.stop - part.start for part in self.region)

    def name(self, operands: Sequence[Operand]) -> str:
        """Return its name for people: ``"A[0:256, 512:1024]"``."""
        spans = ", ".join(f"{part.start}:{part.stop}" for part in self.region)
        return f"{operands[self.operand].name}[{spans}]"


class BlockTable:
    """Gives each distinct region of each operand one dense id."""

    def __init__(self, operands: tuple[Operand, ...]) -> None:
        self._operands = operands
        self._blocks: dict[tuple[int, tuple[tuple[int, int], ...]], OperandBlock] = {}

    def block(self, operand: int, bounds: tuple[tuple[int, int], ...]) -> OperandBlock:
        """Return the block of ``operand`` within ``bounds``, one (start, stop) per axis."""
        key = (operand, bounds)
        found = self._blocks.get(key)
        if found is None:
            described = self._operands[operand]
            extent = tuple(stop - start for start, stop in bounds)
            moved = 0 if described.in_place else described.stored_bytes(extent)
            found = OperandBlock(
                id=len(self._blocks),
                operand=operand,
                region=tuple(slice(start, stop) for start, stop in bounds),
                held_bytes=described.held_bytes(extent),
                moved_bytes=moved,
                run_bytes=described.run_bytes(extent),
            )
            self._blocks[key] = found
        return found


@dataclass(frozen=True)
class PlanStep:
    """One call of a kernel: blocks it reads, the block it writes, and what it does with them."""

    reads: tuple[OperandBlock, ...]
    """Blocks that must be loaded before the step."""
    write: OperandBlock
    """Block the step writes or adds to; held in the pool from its first step to its last."""
    first: bool
    """True when the block written holds nothing yet."""
    last: bool
    """True when the block written is complete afterwards and goes to its store."""
    task: Any
    """Further arguments of the kernel besides the blocks (for matmul, the ranges of k)."""
    compute_s: float
    """Predicted seconds of arithmetic."""
    flops: float = 0.0
    """Floating-point operations."""


@dataclass(frozen=True)
class Forecast:
    """Outcome of a plan's accesses, found by simulating them."""

    peak_pool_bytes: int
    """Most bytes the pool holds at any time."""
    bytes_read: Mapping[str, int]
    """Bytes read from stores, by operand."""
    bytes_written: int
    """Bytes written to the result's store."""
    hits: int
    misses: int
    evictions: int
    fetched_bytes: int
    """Bytes brought into the pool, in the element type of its blocks."""
    saved_bytes: int
    """Bytes of the pool's blocks that went to the result's store."""
    steps: int
    """Number of steps."""
    passes: int
    """Number of passes; the steps of a pass share the pool's contents."""
    seconds: float
    """Predicted wall time, reads, arithmetic and writes overlapping."""
    compute_s: float
    """Seconds of arithmetic alone."""
    stall_s: float
    """Seconds in which the arithmetic waits for data."""
    read_s: float
    """Seconds of reading, one read after the other."""
    write_s: float
    """Seconds of writing."""

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written


@dataclass(frozen=True)
class Alternative:
    """A schedule that was considered and not chosen."""

    schedule: str
    moved_bytes: int
    seconds: float
    reason: str
    """Why it was not chosen, in words."""
