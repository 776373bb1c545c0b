"""Steps of a matmul made from the choices of its schedule, and its passes where there are very many.

Every schedule is the same loop nest with other numbers. The result is cut into tiles; over a tile
run the slabs of k, in each slab the sub-slabs, and innermost the strips of the tile:

    for tile (r, c):  for slab of k:  for sub-slab:  for strip of r:
        out[strip, c] += left[strip, slab][:, sub-slab] @ right[sub-slab, c]

``left`` is A and ``right`` is B, or the other way round when ``swap`` is set, r then counting the
columns of the result. A strip is one block, so that it is written as soon as it is complete. A
left block spans a whole slab and serves all its sub-slabs, so a row-major A is read in long
pieces while B's blocks stay small. Tiles and slabs alternate direction, so whatever the pool
still holds at a turn is used again.

One slab over the full depth with small tiles is the panel-stationary schedule; large tiles with
shallow slabs are the C-stationary one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any

from accelera.errors import StoreFormatError
from accelera.plan.cost import CostModel
from accelera.plan.partition import Cuts, Partition, Region, Span
from accelera.plan.saved_choices import (
    bool_choice,
    fractions_choice,
    whole_choice,
    whole_value,
    window_choice,
)
from accelera.plan.types import BlockTable, Operand, OperandBlock, PlanStep
from accelera.plan.walk import Part, Pass, Pattern, Repeat, grouped

A, B, C = 0, 1, 2


@dataclass(frozen=True)
class MatmulProblem:
    """``C = A @ B`` with batch axes in front; A, B and C have the same number of axes."""

    a: Operand
    b: Operand
    c: Operand

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        """A, B and C."""
        return self.a, self.b, self.c

    @property
    def m(self) -> int:
        """Rows of A and C."""
        return self.a.shape[-2]

    @property
    def k(self) -> int:
        """Columns of A, rows of B."""
        return self.a.shape[-1]

    @property
    def n(self) -> int:
        """Columns of B and C."""
        return self.b.shape[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch shape of the result."""
        return self.c.shape[:-2]

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to multiply: the result has no elements, or all are zero."""
        return 0 in (self.m, self.k, self.n, *self.batch)

    @property
    def grains(self) -> tuple[int, int, int]:
        """Alignment of cuts along m, k and n: pages of long axes, and the chunks of chunked stores."""
        (a, b, c), item = self.operands, self.c.dtype.itemsize
        m = _grain(self.m, item, _chunk(a, -2), _chunk(c, -2))
        k = _grain(self.k, item, _chunk(a, -1), _chunk(b, -2))
        n = _grain(self.n, item, _chunk(b, -1), _chunk(c, -1))
        return m, k, n

    @property
    def flops_scale(self) -> float:
        """Cost of one multiply-add relative to f32."""
        kind, size = self.c.held_dtype.kind, self.c.held_dtype.itemsize
        if kind == "c":
            return size / 2.0
        return {"f": size / 4.0}.get(kind, 8.0)


@dataclass(frozen=True)
class MatmulChoice:
    """The numbers that make a schedule out of the loop nest."""

    partition: Partition
    strip: int
    """Rows of a strip (columns, when swapped)."""
    slab: int
    """Depth of a left block."""
    sub: int
    """Depth of a right block and of one product."""
    window: int = 3
    """Steps under way at once."""
    swap: bool = False
    group: int = 1
    """Matrices of the last batch axis that form one block."""
    tiles: tuple[tuple[Span, Span], ...] | None = None
    """(row span, column span) of each tile, when the caller cuts the result himself."""
    pass_steps: int = 0
    """Most steps of a pass; 0: all are one pass."""

    def spec(self) -> dict[str, Any]:
        """Return the choices as JSON-able values."""
        return {
            "bands": [list(band) for band in self.partition.bands],
            "by_rows": self.partition.by_rows,
            "shares": list(self.partition.shares),
            "strip": self.strip,
            "slab": self.slab,
            "sub": self.sub,
            "window": self.window,
            "swap": self.swap,
            "group": self.group,
            "pass_steps": self.pass_steps,
            "tiles": None if self.tiles is None else [[list(r), list(c)] for r, c in self.tiles],
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> MatmulChoice:
        """Rebuild the choices that ``spec`` returned."""
        bands = tuple(
            (whole_value(count, "bands", 0), whole_value(parts, "bands", 0)) for count, parts in spec["bands"]
        )
        tiles = spec["tiles"]
        if not bands and tiles is None:
            raise StoreFormatError("[plan] bands is empty, expected at least one band; plan again")
        return cls(
            Partition(bands, bool_choice(spec, "by_rows"), fractions_choice(spec, "shares", len(bands))),
            whole_choice(spec, "strip", 1),
            whole_choice(spec, "slab", 1),
            whole_choice(spec, "sub", 1),
            window_choice(spec),
            bool_choice(spec, "swap"),
            whole_choice(spec, "group", 1),
            None if tiles is None else tuple(((r[0], r[1]), (c[0], c[1])) for r, c in tiles),
            whole_choice(spec, "pass_steps", 0),
        )


def _grain(size: int, itemsize: int, *chunks: int) -> int:
    """Return the alignment of cuts along one axis that unbalances nothing."""
    page = max(4096 // itemsize, 1)
    fine = page if size >= 64 * page else 64 if size >= 1024 else 1
    whole = math.lcm(*chunks)
    return next((each for each in (whole, max(chunks)) if fine < each <= size // 2), fine)


def _chunk(operand: Operand, axis: int) -> int:
    return operand.chunk[axis] if operand.chunk is not None else 1


@dataclass(frozen=True)
class MatmulPiece:
    """A part of the depth of a tile."""

    slabs: range
    """Which slabs, by number."""
    subs: range | None = None
    """Which sub-slabs of the only slab; None: all of all slabs."""
    begins: bool = False
    """Whether the tile begins with it."""
    ends: bool = False


class _GemmSeconds(dict[tuple[int, int, int, int], float]):
    """Predicted seconds of products by (m, k, n, matrices): a plan has few different sizes."""

    def __init__(self, cost: CostModel, flops_scale: float) -> None:
        super().__init__()
        self._cost, self._flops_scale = cost, flops_scale

    def __missing__(self, size: tuple[int, int, int, int]) -> float:
        m, k, n, count = size
        self[size] = seconds = self._cost.gemm_s(m, k, n, self._flops_scale * count)
        return seconds


class LoopNest:
    """The loops of one matmul with one choice; each walk through it takes a nest of its own."""

    def __init__(self, problem: MatmulProblem, choice: MatmulChoice, cost: CostModel) -> None:
        self._problem = problem
        self.choice = choice
        self._gemm_s = _GemmSeconds(cost, problem.flops_scale)
        self._table = BlockTable(problem.operands)
        m, self._grain_k, n = problem.grains
        self._grain_r, self._grain_c = (n, m) if choice.swap else (m, n)
        self.slabs = _cut((0, problem.k), choice.slab, self._grain_k)
        """How the depth is cut for left blocks."""
        last = (*problem.batch, 1)[-1 if not problem.batch else -2]
        self.groups = Cuts(last, math.ceil(last / choice.group))
        """How the last batch axis is cut."""
        self.outer = math.prod(problem.batch[:-1])
        """How often that is gone through."""

    def steps(self) -> Iterator[PlanStep]:
        """Yield all steps."""
        pairs = ((outer, group) for outer in range(self.outer) for group in range(len(self.groups)))
        return self.some(pairs, self.tiles)

    def some(
        self,
        batches: Iterable[tuple[int, int]],
        tiles: Callable[[], Iterable[tuple[Span, Span]]],
        piece: MatmulPiece | None = None,
    ) -> Iterator[PlanStep]:
        """Yield the steps of some (outer, group) numbers of batches, some tiles, and a part of the depth."""
        for outer, group in batches:
            for index, (rows, cols) in enumerate(tiles()):
                backwards = piece is None and index % 2 == 1
                yield from self._tile_steps(self._batch(outer, group), rows, cols, backwards, piece)

    def _batch(self, outer: int, group: int) -> tuple[Span, ...]:
        batch = self._problem.batch
        if not batch:
            return ()
        place = []
        for size in reversed(batch[:-1]):
            outer, index = divmod(outer, size)
            place.append((index, index + 1))
        return (*reversed(place), self.groups[group])

    def regions(self) -> list[Region]:
        """Return how the result is tiled along (r, c): rows and columns, exchanged when swapped."""
        m, n = self._problem.m, self._problem.n
        r, c = (n, m) if self.choice.swap else (m, n)
        return self.choice.partition.regions(r, c, self._grain_r, self._grain_c)

    def tiles(self) -> Iterator[tuple[Span, Span]]:
        """Yield all tiles, spans along (r, c)."""
        swap = self.choice.swap
        if self.choice.tiles is not None:
            yield from ((cols, rows) if swap else (rows, cols) for rows, cols in self.choice.tiles)
            return
        before = 0
        for region in self.regions():
            yield from region.tiles(range(len(region.bands)), range(len(region.parts)), before)
            before += len(region.bands)

    def strips(self, rows: Span) -> Cuts:
        """Return how a tile is cut along r."""
        return _cut(rows, self.choice.strip, self._grain_r)

    def subs(self, slab: Span) -> Cuts:
        """Return how a slab is cut for right blocks."""
        return _cut(slab, self.choice.sub, self._grain_k)

    def _tile_steps(
        self, batch: tuple[Span, ...], rows: Span, cols: Span, backwards: bool, piece: MatmulPiece | None
    ) -> Iterator[PlanStep]:
        strips = list(self.strips(rows))
        if piece is not None:  # the blocks that several passes hold have the same ids in all of them
            for strip in strips:
                self._out(batch, strip, cols)
        depth = list(self._depth(backwards, piece))
        for index, (slab, sub) in enumerate(depth):
            first = index == 0 and (piece is None or piece.begins)
            last = index == len(depth) - 1 and (piece is None or piece.ends)
            for strip in strips:
                yield self._step(batch, strip, cols, slab, sub, first, last)

    def _depth(self, backwards: bool, piece: MatmulPiece | None) -> Iterator[tuple[Span, Span]]:
        slabs = range(len(self.slabs)) if piece is None else piece.slabs
        for number in reversed(slabs) if backwards else slabs:
            slab = self.slabs[number]
            subs = self.subs(slab)
            chosen = range(len(subs)) if piece is None or piece.subs is None else piece.subs
            for sub in reversed(chosen) if backwards else chosen:
                yield slab, subs[sub]

    def _out(self, batch: tuple[Span, ...], strip: Span, cols: Span) -> OperandBlock:
        return self._block(C, batch, *((cols, strip) if self.choice.swap else (strip, cols)))

    def _step(
        self, batch: tuple[Span, ...], strip: Span, cols: Span, slab: Span, sub: Span, first: bool, last: bool
    ) -> PlanStep:
        whole, part = (0, sub[1] - sub[0]), (sub[0] - slab[0], sub[1] - slab[0])
        if self.choice.swap:
            reads = (self._block(A, batch, cols, sub), self._block(B, batch, slab, strip))
            ranges = (whole, part)
        else:
            reads = (self._block(A, batch, strip, slab), self._block(B, batch, sub, cols))
            ranges = (part, whole)
        out = self._out(batch, strip, cols)
        count = math.prod(stop - start for start, stop in batch) if batch else 1
        across, along = strip[1] - strip[0], cols[1] - cols[0]
        m, n = (along, across) if self.choice.swap else (across, along)
        seconds = self._gemm_s[m, sub[1] - sub[0], n, count]
        flops = 2.0 * count * m * (sub[1] - sub[0]) * n
        return PlanStep(reads, out, first, last, ranges, seconds, flops)

    def _block(self, operand: int, batch: tuple[Span, ...], rows: Span, cols: Span) -> OperandBlock:
        if not batch:
            return self._table.block(operand, (rows, cols))
        shape = self._problem.operands[operand].shape
        fitted = tuple((0, 1) if shape[axis] == 1 else span for axis, span in enumerate(batch))
        return self._table.block(operand, (*fitted, rows, cols))


def _cut(span: Span, length: int, align: int) -> Cuts:
    """Cut ``span`` into nearly equal pieces of about ``length`` that start at multiples of ``align``."""
    size = span[1] - span[0]
    fitting = align if length >= align else 1
    parts = math.ceil(size / max(length // fitting * fitting, 1))
    return Cuts(size, parts, fitting, span[0])


Tile = tuple[Span, Span]
Batch = tuple[int, int]
"""Outer number and number of the group."""


def matmul_pattern(problem: MatmulProblem, choice: MatmulChoice, cost: CostModel) -> Pattern:
    """Return the passes of ``choice``; a result without elements takes none."""
    if 0 in problem.c.shape:
        return Pattern(())
    make = partial(LoopNest, problem, choice, cost)
    if not choice.pass_steps:
        return Pattern.of(lambda: make().steps())
    return Pattern(_Cutter(make, choice.pass_steps).all())


class _Cutter:
    """Cuts a loop nest into passes of about ``limit`` steps, or a few more where less is not possible."""

    def __init__(self, make: Callable[[], LoopNest], limit: int) -> None:
        self._make, self._limit = make, limit
        self._nest = nest = make()
        self._tiles = None if nest.choice.tiles is None else list(nest.tiles())
        self._regions = [] if self._tiles is not None else nest.regions()
        self._per_slab = self._most_strips() * len(nest.subs(nest.slabs[0]))
        self._per_tile = self._per_slab * len(nest.slabs)
        count = sum(len(each.bands) * len(each.parts) for each in self._regions)
        self._per_matrix = self._per_tile * (count if self._tiles is None else len(self._tiles))

    def _most_strips(self) -> int:
        if self._tiles is not None:
            return max((len(self._nest.strips(rows)) for rows, _ in self._tiles), default=1)
        return max(len(self._nest.strips((0, each.tall.longest))) for each in self._regions)

    def all(self) -> tuple[Repeat, ...]:
        """Return all passes."""
        outer, groups = self._nest.outer, len(self._nest.groups)
        size = self._limit // max(1, self._per_matrix * groups)
        if not size:
            return (Repeat(outer, self._groups),)

        def part(number: int) -> Pass:
            numbers = _members(number, size, outer)
            return self._pass([(each, group) for each in numbers for group in range(groups)])

        return grouped(Cuts(outer, outer).groups(size), part)

    def _groups(self, outer: int) -> tuple[Repeat, ...]:
        groups = self._nest.groups
        size = self._limit // max(1, self._per_matrix)
        if not size:
            return grouped(groups.groups(1), lambda group: self._matrix((outer, group)))
        return grouped(
            groups.groups(size),
            lambda number: self._pass([(outer, each) for each in _members(number, size, len(groups))]),
        )

    def _matrix(self, batch: Batch) -> tuple[Repeat, ...]:
        if self._tiles is not None:
            return self._given(batch, self._tiles)
        places = [(place, place + 1) for place in range(len(self._regions))]
        return grouped(places, lambda place: self._bands(batch, self._regions[place]))

    def _bands(self, batch: Batch, region: Region) -> tuple[Repeat, ...]:
        size = max(1, self._limit // (self._per_tile * len(region.parts)))
        return grouped(
            region.bands.groups(size),
            lambda number: self._parts(batch, region, _members(number, size, len(region.bands))),
        )

    def _parts(self, batch: Batch, region: Region, bands: range) -> tuple[Repeat, ...]:
        size = max(1, self._limit // (self._per_tile * len(bands)))

        def part(number: int) -> Part:
            parts = _members(number, size, len(region.parts))
            return self._some(batch, lambda: region.tiles(bands, parts))

        return grouped(region.parts.groups(size), part)

    def _given(self, batch: Batch, tiles: list[Tile]) -> tuple[Repeat, ...]:
        size = max(1, self._limit // self._per_tile)
        groups = [tiles[start : start + size] for start in range(0, len(tiles), size)]
        edges = [0, *(sum(1 for _ in group) for _, group in groupby(groups, key=_outline))]
        return grouped(
            list(pairwise(accumulate(edges))), lambda number: self._some(batch, lambda: groups[number])
        )

    def _some(self, batch: Batch, tiles: Callable[[], Iterable[Tile]]) -> Part:
        """Return the pass of some tiles, or the passes of the only one."""
        if self._per_tile <= self._limit:
            return self._pass([batch], tiles)
        slabs = self._nest.slabs
        size = max(1, self._limit // self._per_slab)
        if self._per_slab > self._limit:
            return grouped(slabs.groups(1, ends=True), lambda slab: self._subs(batch, tiles, slab))

        def part(number: int) -> Pass:
            members = _members(number, size, len(slabs))
            piece = MatmulPiece(members, None, members.start == 0, members.stop == len(slabs))
            return self._pass([batch], tiles, piece)

        return grouped(slabs.groups(size, ends=True), part)

    def _subs(self, batch: Batch, tiles: Callable[[], Iterable[Tile]], slab: int) -> tuple[Repeat, ...]:
        """Return the passes of one slab of one tile."""
        nest = self._nest
        subs = nest.subs(nest.slabs[slab])
        size = max(1, self._limit // self._most_strips())

        def part(number: int) -> Pass:
            members = _members(number, size, len(subs))
            begins = slab == 0 and members.start == 0
            ends = slab == len(nest.slabs) - 1 and members.stop == len(subs)
            return self._pass([batch], tiles, MatmulPiece(range(slab, slab + 1), members, begins, ends))

        return grouped(subs.groups(size, ends=True), part)

    def _pass(
        self,
        batches: list[Batch],
        tiles: Callable[[], Iterable[Tile]] | None = None,
        piece: MatmulPiece | None = None,
    ) -> Pass:
        make = self._make
        if tiles is None:
            return Pass(lambda: (nest := make()).some(batches, nest.tiles))
        return Pass(lambda: make().some(batches, tiles, piece))


def _members(number: int, size: int, count: int) -> range:
    """Return what the group of that number has of ``count`` in groups of ``size``."""
    return range(number * size, min((number + 1) * size, count))


def _outline(tiles: list[Tile]) -> tuple[tuple[int, ...], ...]:
    """Return the spans of tiles as seen from the first: equal for groups that look alike."""
    (row, _), (column, _) = tiles[0]
    return tuple((r[0] - row, r[1] - row, c[0] - column, c[1] - column) for r, c in tiles)
