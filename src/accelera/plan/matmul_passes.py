"""From the loop nest of a matmul to its passes.

A plan that is short enough is one pass. Else the loops are cut at the outermost level at which some turns
make a pass of the wanted length: batches, bands of tiles, tiles, and where one tile alone is too long, the
depth of a tile, whose blocks of the result stay in the pool from pass to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, groupby, pairwise

from accelera.plan.cost import CostModel
from accelera.plan.matmul_steps import LoopNest, MatmulChoice, MatmulPiece, MatmulProblem
from accelera.plan.partition import Cuts, Region, Span
from accelera.plan.passes import Part, Pass, Pattern, Repeat, grouped

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
