"""Steps of a Gram matrix made from its choices, and its passes where there are very many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from accelera.plan.cost import CostModel
from accelera.plan.partition import Cuts, Span
from accelera.plan.types import BlockTable, Operand, PlanStep
from accelera.plan.walk import Part, Pass, Pattern, Repeat, grouped, passes_of


@dataclass(frozen=True)
class GramProblem:
    """``G = Aᴴ A`` for A of ``(…, depth, size)``."""

    a: Operand
    g: Operand

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """A and G."""
        return self.a, self.g

    @property
    def depth(self) -> int:
        """Rows of A."""
        return self.a.shape[-2]

    @property
    def size(self) -> int:
        """Columns of A, rows and columns of G."""
        return self.a.shape[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch shape of both."""
        return self.a.shape[:-2]

    @property
    def flops_scale(self) -> float:
        """Cost of one multiply-add relative to f32."""
        kind, size = self.g.held_dtype.kind, self.g.held_dtype.itemsize
        return size / 2.0 if kind == "c" else {"f": size / 4.0}.get(kind, 8.0)

    def align(self, axis: int) -> int:
        """Return the alignment of cuts along an axis of A: its chunks on chunked stores, else 64."""
        chunk, size = self.a.chunk, self.a.shape[axis]
        if chunk is not None and chunk[axis] <= size // 2:
            return chunk[axis]
        return 64 if size >= 1024 else 1


@dataclass(frozen=True)
class GramChoice:
    """The numbers of a schedule."""

    parts: int
    """Tiles along an edge of G."""
    slab: int
    """Depth of a block of A."""
    strips: int
    """Strips of a tile."""
    window: int
    pass_steps: int = 0
    """Most steps of a pass; 0: all are one pass."""


class GramSteps:
    """Generates the steps of one Gram matrix with one choice."""

    def __init__(self, problem: GramProblem, choice: GramChoice, cost: CostModel) -> None:
        self._problem = problem
        self.choice = choice
        self._cost = cost
        self.edges = Cuts(problem.size, choice.parts if problem.size else 1, problem.align(-1))
        """How the rows and columns of G are cut."""
        slabs = math.ceil(problem.depth / choice.slab)
        self.slabs = Cuts(problem.depth, slabs, problem.align(-2))
        self._matrices = math.prod(problem.batch)

    def pattern(self) -> Pattern:
        """Return the passes: matrices, squares of tiles, or parts of the depth of a tile."""
        limit, tiles = self.choice.pass_steps, len(self.edges)
        if not self._problem.size or not self._matrices:
            return Pattern(())
        if not limit:
            whole = self._upper(range(tiles), range(tiles))
            return Pattern.of(lambda: self._some(range(self._matrices), whole))
        per_matrix = self._per_tile * tiles * (tiles + 1) // 2
        if per_matrix <= limit:
            return Pattern(self._whole(limit // per_matrix))
        size = max(1, math.isqrt(limit // self._per_tile))
        return Pattern(self._kinds(size), lambda: self._in_order(size))

    @property
    def _per_tile(self) -> int:
        strips = self.choice.strips
        return len(self.slabs) * max(strips, strips * (strips + 1) // 2)

    def _whole(self, size: int) -> tuple[Repeat, ...]:
        """Return passes of ``size`` matrices each."""
        count, tiles = self._matrices, range(len(self.edges))

        def part(number: int) -> Pass:
            members = range(number * size, min((number + 1) * size, count))
            return Pass(lambda: self._some(members, self._upper(tiles, tiles)))

        return grouped(Cuts(count, count).groups(size), part)

    def _kinds(self, size: int) -> tuple[Repeat, ...]:
        """Return a square of tiles of each kind, ``size`` tiles a side, and how many there are of it."""
        groups = self.edges.groups(size)
        found = []
        for place, (first, stop) in enumerate(groups):
            count = stop - first
            pairs = [(first, first, count), (first, first + 1, count * (count - 1) // 2)]
            pairs += [(first, after, count * (end - after)) for after, end in groups[place + 1 :]]
            found += [
                Repeat(count * self._matrices, _Always(self._square(0, row, column, size)))
                for row, column, count in pairs
                if count
            ]
        return tuple(found)

    def _in_order(self, size: int) -> Iterator[Pass]:
        groups = range(math.ceil(len(self.edges) / size))
        for matrix in range(self._matrices):
            for row in groups:
                for column in groups[row:]:
                    yield from passes_of(self._square(matrix, row, column, size))

    def _square(self, matrix: int, row: int, column: int, size: int) -> Part:
        """Return the pass of a square of tiles, or the passes of the only one."""
        rows, columns = (
            range(each * size, min((each + 1) * size, len(self.edges))) for each in (row, column)
        )
        tiles = self._upper(rows, columns)
        if self._per_tile <= self.choice.pass_steps:
            return Pass(lambda: self._some(range(matrix, matrix + 1), tiles))
        deep = max(1, self.choice.pass_steps * len(self.slabs) // self._per_tile)

        def part(number: int) -> Pass:
            slabs = range(number * deep, min((number + 1) * deep, len(self.slabs)))
            return Pass(lambda: self._some(range(matrix, matrix + 1), tiles, slabs))

        return grouped(self.slabs.groups(deep, ends=True), part)

    def _upper(self, rows: range, columns: range) -> Callable[[], Iterator[tuple[int, int]]]:
        """Return what yields the (row, column) of tiles on and above the diagonal, to and fro."""

        def tiles() -> Iterator[tuple[int, int]]:
            for index, row in enumerate(rows):
                band = range(max(row, columns.start), columns.stop)
                yield from ((row, column) for column in (band if index % 2 == 0 else reversed(band)))

        return tiles

    def _some(
        self, matrices: range, tiles: Callable[[], Iterator[tuple[int, int]]], slabs: range | None = None
    ) -> Iterator[PlanStep]:
        """Yield the steps of some tiles of some matrices, of their whole depth or of some slabs of it."""
        table = BlockTable(self._problem.operands)
        backwards = False
        for matrix in matrices:
            for row, column in tiles():
                tile = _GramTile(self, table, self._place(matrix), self.edges[row], self.edges[column])
                yield from tile.steps(slabs, backwards)
                backwards = slabs is None and not backwards

    def _place(self, matrix: int) -> tuple[Span, ...]:
        place = []
        for size in reversed(self._problem.batch):
            matrix, index = divmod(matrix, size)
            place.append((index, index + 1))
        return tuple(reversed(place))

    def step(
        self,
        table: BlockTable,
        batch: tuple[Span, ...],
        slab: Span,
        rows: Span,
        cols: Span,
        first: bool,
        last: bool,
    ) -> PlanStep:
        """Return one product; a block beside the diagonal is written twice."""
        reads = tuple(table.block(0, (*batch, slab, each)) for each in dict.fromkeys((rows, cols)))
        write = table.block(1, (*batch, rows, cols))
        if rows != cols:
            write = replace(write, moved_bytes=2 * write.moved_bytes)
        m, k, n = rows[1] - rows[0], slab[1] - slab[0], cols[1] - cols[0]
        share = 0.5 if rows == cols else 1.0
        seconds = self._cost.gemm_s(m, k, n, self._problem.flops_scale * share)
        return PlanStep(reads, write, first, last, rows == cols, seconds, 2.0 * share * m * k * n)

    def strips(self, rows: Span) -> Cuts:
        """Return how a tile is cut."""
        return Cuts(rows[1] - rows[0], self.choice.strips, self._problem.align(-1), rows[0])


@dataclass(frozen=True)
class _Always:
    part: Part

    def __call__(self, _: int) -> Part:
        return self.part


@dataclass(frozen=True)
class _GramTile:
    """One tile of one matrix."""

    owner: GramSteps
    table: BlockTable
    batch: tuple[Span, ...]
    rows: Span
    cols: Span

    def steps(self, chosen: range | None, backwards: bool) -> Iterator[PlanStep]:
        """Yield the steps of all slabs, or of those chosen."""
        pairs, slabs = list(self._pairs()), self.owner.slabs
        if chosen is not None:  # the blocks that several passes hold have the same ids in all of them
            for strip, across in pairs:
                self.table.block(1, (*self.batch, strip, across))
        numbers = range(len(slabs)) if chosen is None else chosen
        ordered = numbers[::-1] if backwards else numbers
        for number in ordered:
            first = number == (ordered[0] if chosen is None else 0)
            last = number == (ordered[-1] if chosen is None else len(slabs) - 1)
            for strip, across in pairs:
                yield self.owner.step(self.table, self.batch, slabs[number], strip, across, first, last)

    def _pairs(self) -> Iterator[tuple[Span, Span]]:
        """Yield the (rows, columns) of the blocks."""
        strips = self.owner.strips(self.rows)
        for index, strip in enumerate(strips):
            if self.rows == self.cols:
                yield from ((strip, each) for each in strips[index:])
            else:
                yield strip, self.cols
