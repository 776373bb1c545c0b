"""Kernels of element-wise expressions: one tile, stored or reduced, in pieces that fit the caches."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import TracebackType
from typing import Any, final

import numpy as np

from accelera.devices import Device
from accelera.engine.dtypes import cast_into, cast_itemsize
from accelera.engine.program import ElementwiseProgram, Scratch
from accelera.engine.reducers import ReductionPlace, RunningReduction, States
from accelera.plan._internal import PlanStep
from accelera.stores._internal import Region

Shape = tuple[int, ...]

PIECE_BYTES = 256 << 10
"""Bytes of one operand that are worked on at a time."""
_EDGE = 128
"""Edge of a piece where operands lie in different orders."""
_RUN = 4096
"""Longest piece along an axis that a reduction keeps: the running states stay in the nearest cache."""


def piece_shape(extent: Shape, orders: Sequence[Shape], reduced: Shape, elements: int) -> Shape:
    """Return the shape of pieces of at most ``elements`` for operands that lie in ``orders``."""
    piece = [1] * len(extent)
    for order in orders:
        if len(orders) > 1:
            piece[order[-1]] = min(_EDGE, extent[order[-1]])
    for axis in reversed(orders[0]):
        room = elements // math.prod(piece)
        longest = _RUN if reduced and axis not in reduced else extent[axis]
        piece[axis] = max(piece[axis], min(extent[axis], longest, piece[axis] * max(room, 1)))
    return tuple(max(each, 1) for each in piece)


def pieces(extent: Shape, shape: Shape) -> list[Region]:
    """Cut a tile of ``extent`` into pieces of ``shape``; none when it is empty."""
    return list(_cut(extent, shape))


def _cut(extent: Shape, shape: Shape) -> Iterator[Region]:
    starts = [range(0, size, part) for size, part in zip(extent, shape, strict=True)]
    for corner in product(*starts):
        yield tuple(
            slice(start, min(start + part, size))
            for start, part, size in zip(corner, shape, extent, strict=True)
        )


class Team:
    """A fixed number of worker threads; the calling thread is the first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size - 1, "accelera-compute") if size > 1 else None

    def share(self, work: Callable[[int], None], count: int) -> None:
        """Call ``work(worker)`` for every worker and wait; with fewer than two pieces, in this thread alone.

        Raises the first error of a worker, once all have ended.
        """
        if self._pool is None or count < 2:
            for worker in range(self.size):
                work(worker)
            return
        waiting = [self._pool.submit(work, worker) for worker in range(1, self.size)]
        try:
            work(0)
        finally:
            for each in waiting:
                each.exception()
        for each in waiting:
            each.result()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()


Array = np.ndarray[Any, np.dtype[Any]]


class SweepKernel(abc.ABC):
    """Base of both kernels: a program, the orders of its operands, and a team with one scratch per worker."""

    def __init__(
        self, program: ElementwiseProgram, dtype: np.dtype[Any], orders: Sequence[Shape], team: Team
    ) -> None:
        self.program = program
        self.dtype = dtype
        """Element type of the result."""
        self.orders = tuple(orders)
        """Distinct orders in which operands lie, the most important first."""
        self.team = team
        self._scratches: list[Scratch] = []

    @property
    def piece_elements(self) -> int:
        """Most elements of one piece."""
        held = [value.dtype.itemsize for value in self.program.values]
        return PIECE_BYTES // max(held)

    @property
    @abc.abstractmethod
    def piece_itemsize(self) -> int:
        """Bytes each worker takes per element of a piece once the program has run."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes that all workers take while they compute."""
        beside = max(self.program.cast_itemsize, self.piece_itemsize)
        itemsize = sum(self.program.slot_itemsizes) + beside
        return self.team.size * self.piece_elements * itemsize

    def scratch(self, worker: int) -> Scratch:
        """Return the buffers of one worker; all are made at the first call."""
        if not self._scratches:
            order = self.orders[0] if len(self.orders) == 1 else tuple(range(len(self.program.shape)))
            self._scratches = [
                Scratch(self.program, self.piece_elements, order) for _ in range(self.team.size)
            ]
        return self._scratches[worker]

    @abc.abstractmethod
    def __call__(self, device: Device, step: PlanStep, arrays: Sequence[Array], out: Array) -> None:
        """Compute one step."""


@final
class StoreKernel(SweepKernel):
    """Stores each element of an expression, converted to the result's type."""

    def __init__(
        self,
        program: ElementwiseProgram,
        dtype: np.dtype[Any],
        orders: Sequence[Shape],
        team: Team,
        check: Callable[[Array], None] | None = None,
    ) -> None:
        super().__init__(program, dtype, orders, team)
        self._check = check

    @property
    def piece_itemsize(self) -> int:
        """Bytes per element of the last conversion."""
        return cast_itemsize(self.program.dtype, self.dtype)

    def __call__(self, device: Device, step: PlanStep, arrays: Sequence[Array], out: Array) -> None:
        """Compute one tile."""
        regions = pieces(out.shape, piece_shape(out.shape, self.orders, (), self.piece_elements))
        self.scratch(0)

        def work(worker: int) -> None:
            with np.errstate(all="ignore"):
                for region in regions[worker :: self.team.size]:
                    self._store(self.scratch(worker), region, arrays, out[region])

        self.team.share(work, len(regions))

    def _store(self, scratch: Scratch, region: Region, arrays: Sequence[Array], out: Array) -> None:
        leaves = [array[_broadcast_region(region, array.shape)] for array in arrays]
        computed = self.program.values[self.program.root].computed
        if computed and out.dtype == self.program.dtype:
            scratch.run(leaves, out.shape, out)
            return
        found = scratch.run(leaves, out.shape)
        if self._check is not None:
            self._check(found)
        cast_into(found, out)


@final
class ReduceKernel(SweepKernel):
    """Reduces an expression; each worker keeps running states of its own, joined in order at the end."""

    def __init__(
        self,
        program: ElementwiseProgram,
        dtype: np.dtype[Any],
        orders: Sequence[Shape],
        team: Team,
        reducer: RunningReduction,
        axes: Shape,
        flat: Shape,
    ) -> None:
        super().__init__(program, dtype, orders, team)
        self._reducer = reducer
        self._axes = axes
        self._flat = flat
        self._states: list[States] = []

    @property
    def piece_itemsize(self) -> int:
        """Bytes per element of partial states and their merging, or of the last conversion."""
        last = cast_itemsize(self._reducer.dtypes[0], self.dtype)
        return max(self._reducer.scratch_itemsize, last)

    @property
    def state_bytes(self) -> int:
        """Bytes of running states, of all workers, per element of the result."""
        return self.team.size * self._reducer.state_itemsize

    def __call__(self, device: Device, step: PlanStep, arrays: Sequence[Array], out: Array) -> None:
        """Reduce one tile; after the last tile of a block of the result, store the block."""
        extent = tuple(stop - start for start, stop in step.task)
        self.scratch(0)
        if step.first:
            self._begin(out.shape)
        shape = piece_shape(extent, self.orders, self._axes, self.piece_elements)
        regions = pieces(extent, shape)
        share = -(-len(regions) // self.team.size)

        def work(worker: int) -> None:
            with np.errstate(all="ignore"):
                for region in regions[worker * share : (worker + 1) * share]:
                    self._reduce_piece(worker, region, step.task, arrays)

        self.team.share(work, len(regions))
        if step.last:
            self._finish(out)

    def _begin(self, shape: Shape) -> None:
        """Reset the states, which are allocated anew for another shape."""
        if not self._states or self._states[0][0].shape != shape:
            self._states.clear()
            self._states.extend(
                tuple(np.empty(shape, dtype) for dtype in self._reducer.dtypes) for _ in range(self.team.size)
            )
        for states in self._states:
            self._reducer.begin(states)

    def _reduce_piece(
        self, worker: int, region: Region, bounds: Sequence[tuple[int, int]], arrays: Sequence[Array]
    ) -> None:
        extent = tuple(part.stop - part.start for part in region)
        leaves = [array[_broadcast_region(region, array.shape)] for array in arrays]
        values = self.scratch(worker).run(leaves, extent)
        start = tuple(low + part.start for (low, _), part in zip(bounds, region, strict=True))
        states = self._states[worker]
        kept = _broadcast_region(region, states[0].shape)
        partial = self._reducer.partial(values, ReductionPlace(start, self._flat, self._axes))
        self._reducer.merge(tuple(each[kept] for each in states), partial)

    def _finish(self, out: Array) -> None:
        with np.errstate(all="ignore"):
            for region in pieces(out.shape, piece_shape(out.shape, self.orders, (), self.piece_elements)):
                first, *others = [tuple(each[region] for each in states) for states in self._states]
                for each in others:
                    self._reducer.merge(first, each)
                cast_into(self._reducer.end(first), out[region])


def _broadcast_region(region: Region, shape: Shape) -> Region:
    """Return ``region`` of an operand of ``shape``: along axes of length 1, which broadcast, all of it."""
    return tuple(slice(0, 1) if size == 1 else part for part, size in zip(region, shape, strict=True))
