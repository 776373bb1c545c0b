"""Search space of one matmul: every schedule enumerated as arrays and ranked by closed form.

Every row of the table is one choice of the loop nest in ``matmul_steps``: a partition of the
result, a strip height, the depths of left and right blocks. For each the table gives the room it
needs, the bytes it moves and a rough time, all by NumPy arithmetic over the columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelera.plan.cost import WHOLE_STEPS, CostModel, overhead_bytes, overhead_limit, pass_lengths
from accelera.plan.limits import WINDOW, Eviction
from accelera.plan.matmul_steps import MatmulChoice, MatmulProblem
from accelera.plan.partition import Partition, Span, grids
from accelera.plan.types import Operand

Column = NDArray[Any]

FLOOR = 256
_SHARES = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
_DEPTHS = (8192, 4096, 2048, 1024, 768, 512, 384, 256, 128, 64)
_DEEP = (1 << 23, 1 << 21, 1 << 19, 1 << 17, 1 << 15)
"""Depths for thin matrices alone: others have no room for them."""
_STRIP_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_SLAB_TIMES = (1, 2, 4, 8)
_BEST_PER_SIZE = 8
_PASSES_WALKED = 12
"""About the most passes that a forecast walks."""
_BELADY = Eviction()


@dataclass(frozen=True)
class Candidates:
    """Choices and their figures, one per row."""

    choices: list[MatmulChoice]
    """Partition and operand roles of each shape; ``choice`` fills in the block sizes of a row."""
    shape: Column
    """Index into ``choices``."""
    strip: Column
    slab: Column
    sub: Column
    need_bytes: Column
    """Memory in which every step fits with those under way, plus the bookkeeping where it counts."""
    moved_bytes: Column
    seconds: Column
    steps: Column
    """Approximate number of steps."""
    pass_steps: Column
    """Most steps of a pass; 0: all are one pass."""
    floors: tuple[int, ...] = (0,)
    """Indices of the choices with the smallest tiles."""

    @property
    def floor_bytes(self) -> int:
        """Least memory of any plan: that of the smallest tiles, or of the given ones."""
        return int(self.need_bytes[np.isin(self.shape, self.floors)].min())

    def choice(self, row: int) -> MatmulChoice:
        """Return the choice of one row."""
        base = self.choices[int(self.shape[row])]
        return MatmulChoice(
            base.partition,
            int(self.strip[row]),
            int(self.slab[row]),
            int(self.sub[row]),
            base.window,
            base.swap,
            base.group,
            base.tiles,
            int(self.pass_steps[row]),
        )

    def walked_steps(self, row: int) -> float:
        """Return about how many steps of a choice a forecast walks: equal passes are walked once."""
        few = int(self.pass_steps[row]) * _PASSES_WALKED
        return min(float(self.steps[row]), few) if few else float(self.steps[row])


def enumerate_choices(
    problem: MatmulProblem,
    capacity_bytes: int,
    cost: CostModel,
    tiles: tuple[tuple[Span, Span], ...] | None = None,
    window: int = WINDOW,
    eviction: Eviction = _BELADY,
    *,
    holds_bookkeeping: bool = False,
) -> Candidates:
    """Return every choice considered for ``problem`` in ``capacity_bytes``.

    With ``holds_bookkeeping`` they also hold the records of a run that evicts by ``eviction``.
    """
    group = _group(problem, capacity_bytes)
    halves = []
    for swap in (False, True):
        partitions = [_GIVEN] if tiles is not None else _partitions(problem, capacity_bytes, swap)
        shapes = [MatmulChoice(each, 1, 1, 1, window, swap, group, tiles) for each in partitions]
        halves.append(_table(problem, shapes, capacity_bytes, cost, eviction, holds_bookkeeping))
    return _joined(*halves)


_GIVEN = Partition(((1, 1),), True)


def _group(problem: MatmulProblem, capacity_bytes: int) -> int:
    """Return how many matrices of the last batch axis one block takes together."""
    if not problem.batch:
        return 1
    one = sum(o.held_bytes((*[1] * (len(o.shape) - 2), *o.shape[-2:])) for o in problem.operands)
    return max(1, min(problem.batch[-1], capacity_bytes // max(6 * one, 1)))


def _partitions(problem: MatmulProblem, capacity_bytes: int, swap: bool) -> list[Partition]:
    """Return, of each tile size, the partitions that move the least."""
    rows, cols = (problem.n, problem.m) if swap else (problem.m, problem.n)
    room = capacity_bytes / problem.c.held_dtype.itemsize
    wanted = {Partition(((math.ceil(rows / FLOOR), math.ceil(cols / FLOOR)),), True): None}
    for share in _SHARES:
        found = grids(rows, cols, max(share * room, 1.0))
        words = {each: _words_read(each, rows, cols, problem.k, room) for each in found}
        wanted |= dict.fromkeys(sorted(found, key=lambda each: words[each])[:_BEST_PER_SIZE])
    return list(wanted)


def _words_read(partition: Partition, rows: int, cols: int, k: int, room_words: float) -> float:
    """Return roughly the words that a partition reads, when the pool keeps as much of each panel as fits."""
    outer, inner = (rows, cols) if partition.by_rows else (cols, rows)
    count = sum(bands * parts for bands, parts in partition.bands)
    bands = sum(each for each, _ in partition.bands)
    shares = partition.shares or (1.0,)
    across = sum(share * outer * parts for (_, parts), share in zip(partition.bands, shares, strict=True))
    panel = outer / bands * k
    kept = min(1.0, max(room_words - outer / bands * inner * bands / count, 0.0) / panel)
    return k * (across + bands * inner) - kept * (count - 1) * panel


@dataclass(frozen=True)
class _MatmulTiling:
    """Figures of one tiling for the closed forms, along r and c."""

    tall: int
    """Longest tile along r."""
    short: int
    """Shortest tile along r."""
    wide: int
    rows: int
    """Distinct spans along r."""
    cols: int
    count: int
    sum_r: int
    sum_c: int
    by_rows: bool


def _tiling(problem: MatmulProblem, choice: MatmulChoice) -> _MatmulTiling:
    r, c = (problem.n, problem.m) if choice.swap else (problem.m, problem.n)
    if choice.tiles is not None:
        rows = [stop - start for (start, stop), _ in choice.tiles]
        cols = [stop - start for _, (start, stop) in choice.tiles]
        talls, wides = (cols, rows) if choice.swap else (rows, cols)
        longest, shortest = max(talls, default=1), min(talls, default=1)
        widest, count = max(wides, default=1), len(rows)
        spans = [len({tile[axis] for tile in choice.tiles}) for axis in (0, 1)]
        along_r, along_c = spans[::-1] if choice.swap else spans
        return _MatmulTiling(longest, shortest, widest, along_r, along_c, count, sum(talls), sum(wides), True)
    m, _, n = problem.grains
    grains = (n, m) if choice.swap else (m, n)
    by_rows = choice.partition.by_rows
    inner = c if by_rows else r
    regions = choice.partition.regions(r, c, *grains)
    count = sum(len(each.bands) * each.wanted_parts for each in regions)
    sum_outer = sum((each.bands[-1][1] - each.bands[0][0]) * each.wanted_parts for each in regions)
    few = sum(len(each.bands) for each in regions)
    sum_inner = few * inner
    many = sum({each.wanted_parts: len(each.parts) for each in regions}.values())
    tall, short = max(each.tall.longest for each in regions), min(each.tall.shortest for each in regions)
    wide = max(each.wide.longest for each in regions)
    if by_rows:
        return _MatmulTiling(tall, short, wide, few, many, count, sum_outer, sum_inner, True)
    return _MatmulTiling(tall, short, wide, many, few, count, sum_inner, sum_outer, False)


def _estimates_of(problem: MatmulProblem, choice: MatmulChoice, cost: CostModel) -> _MatmulEstimates:
    shape, *cuts = (np.array([each]) for each in (0, choice.strip, choice.slab, choice.sub))
    return _MatmulEstimates(problem, choice, 0, cost, [_tiling(problem, choice)], shape, _CutSizes(*cuts))


def need_of(problem: MatmulProblem, choice: MatmulChoice, cost: CostModel) -> int:
    """Return the bytes that the blocks of one choice need."""
    figures = _estimates_of(problem, choice, cost)
    return int(figures.need()[0])


def bookkeeping_of(problem: MatmulProblem, choice: MatmulChoice, eviction: Eviction, cost: CostModel) -> int:
    """Return an upper bound of the bookkeeping of one choice, in bytes."""
    figures = _estimates_of(problem, choice, cost)
    return int(figures.bookkeeping(eviction, np.array([choice.pass_steps]))[0])


def _table(
    problem: MatmulProblem,
    shapes: list[MatmulChoice],
    capacity_bytes: int,
    cost: CostModel,
    eviction: Eviction,
    holds_bookkeeping: bool,
) -> Candidates:
    tilings = [_tiling(problem, choice) for choice in shapes]
    k = problem.k
    thin = min(problem.m, problem.n, FLOOR) * problem.c.held_dtype.itemsize
    deep = [depth for depth in _DEEP if depth * thin <= capacity_bytes]
    subs = sorted({k, *[depth for depth in (*deep, *_DEPTHS) if depth < k]})
    depths = sorted(
        {(sub, min(sub * times, k)) for sub in subs for times in _SLAB_TIMES} | {(s, k) for s in subs}
    )
    shape = np.repeat(np.arange(len(shapes)), len(_STRIP_PARTS) * len(depths))
    parts = np.tile(np.repeat(_STRIP_PARTS, len(depths)), len(shapes))
    sub, slab = np.tile(np.array(depths, np.int64).T, len(shapes) * len(_STRIP_PARTS))
    tall = np.array([each.tall for each in tilings])[shape]
    strip = np.maximum(-(-tall // parts), np.minimum(FLOOR, tall))
    figures = _MatmulEstimates(
        problem, shapes[0], capacity_bytes, cost, tilings, shape, _CutSizes(strip, slab, sub)
    )
    moved, seconds = figures.moved(), figures.seconds()
    lengths, need = figures.passes(eviction, holds_bookkeeping=holds_bookkeeping)
    return Candidates(shapes, shape, strip, slab, sub, need, moved, seconds, figures.steps(), lengths)


class _CutSizes(NamedTuple):
    """Block sizes of the choices, one column each."""

    strip: Column
    slab: Column
    sub: Column


class _MatmulEstimates:
    """Closed forms of all choices at once, one column per figure."""

    def __init__(
        self,
        problem: MatmulProblem,
        sample: MatmulChoice,
        capacity_bytes: int,
        cost: CostModel,
        tilings: list[_MatmulTiling],
        shape: Column,
        cuts: _CutSizes,
    ) -> None:
        a, b, c = problem.operands
        self.left, self.right, self.out = (b, a, c) if sample.swap else (a, b, c)
        self.problem, self.sample, self.capacity, self.cost = problem, sample, capacity_bytes, cost
        self.strip, self.slab, self.sub = cuts
        self.tall, self.short, self.wide, self.rows, self.cols, self.count = (
            np.array([getattr(each, name) for each in tilings])[shape]
            for name in ("tall", "short", "wide", "rows", "cols", "count")
        )
        self.sum_r, self.sum_c, self.by_rows = (
            np.array([getattr(each, name) for each in tilings])[shape]
            for name in ("sum_r", "sum_c", "by_rows")
        )
        self.batches = math.prod(problem.batch)

    def _held(self, operand: Operand, rows: Column, cols: Column) -> Column:
        """Return the bytes of a block in the pool, its batch extent included."""
        batched = len(operand.shape) > 2 and operand.shape[-3] > 1
        each = 0 if operand.in_place else operand.held_dtype.itemsize * (self.sample.group if batched else 1)
        held: Column = rows * cols * each
        return held

    def _stored(self, operand: Operand) -> int:
        return 0 if operand.in_place else operand.dtype.itemsize

    def _blocks_under_way(self) -> Column:
        """Return the bytes of the blocks of the steps under way, without blocks kept for later steps.

        A strip of the result is freed ``window`` steps after its last, and the next tile begins
        its first strip as many steps later as there are strips: the two tiles never lie in the
        pool whole.
        """
        window = self.sample.window
        strips, fewest = -(-self.tall // self.strip), -(-self.short // self.strip)
        rights = np.minimum(window, -(-(window - 1) // fewest) + 1)
        several = (self.count > 1) | (self.batches > self.sample.group)
        outs = np.where(several, np.maximum(strips, window) * self.strip, self.tall)
        return (
            self._held(self.left, window * self.strip, self.slab)
            + self._held(self.right, rights * self.sub, self.wide)
            + self._held(self.out, outs, self.wide)
        )

    def need(self) -> Column:
        """Return the bytes in which no block is read twice within a tile."""
        strips = -(-self.tall // self.strip)
        kept = np.where(self.sub < self.slab, np.maximum(strips - self.sample.window, 0) * self.strip, 0)
        return self._blocks_under_way() + self._held(self.left, kept, self.slab)

    def passes(self, eviction: Eviction, *, holds_bookkeeping: bool) -> tuple[Column, Column]:
        """Return the most steps of a pass (0: one pass), and the bytes of blocks and least bookkeeping.

        Passes are as long as their bookkeeping leaves room for the blocks.
        """
        blocks, limit = self.need(), overhead_limit(self.capacity)
        longest, least = (np.full_like(self.strip, each) for each in pass_lengths(self.capacity, eviction))
        whole, some, fewest = (self.bookkeeping(eviction, each) for each in (0 * longest, longest, least))
        fits = self.capacity - blocks if holds_bookkeeping else np.full_like(blocks, limit)
        chosen = np.where(some <= fits, longest, least)
        short = (self.steps() <= WHOLE_STEPS) | (longest == 0)
        chosen = np.where(short & (whole <= np.minimum(fits, limit)), 0, chosen)
        chosen = np.where(short & (whole <= fewest), 0, chosen)
        return chosen, blocks + fewest if holds_bookkeeping else blocks

    def bookkeeping(self, eviction: Eviction, pass_steps: Column) -> Column:
        """Return an upper bound of the bytes of the run's records of a pass's steps and blocks."""
        grain_m, grain_k, grain_n = self.problem.grains
        strips = _pieces(self.tall, self.strip, grain_n if self.sample.swap else grain_m)
        slabs, subs = _pieces(self.problem.k, self.slab, grain_k), _pieces(self.slab, self.sub, grain_k)
        groups = self.batches if not self.problem.batch else _groups(self.problem.batch, self.sample.group)
        lefts, rights = self.rows * strips * slabs, self.cols * slabs * subs
        blocks = groups * (lefts + rights + self.count * strips)
        steps = groups * self.count * strips * slabs * subs
        most = np.where(pass_steps > 0, pass_steps, np.iinfo(np.int64).max // 3)
        found: Column = overhead_bytes(3 * np.minimum(steps, most), np.minimum(blocks, 3 * most), eviction)
        return found

    @cached_property
    def reads(self) -> tuple[Column, Column]:
        """Bytes of left and right operand that the tiles read, less those the pool still holds at a turn."""
        k, left, right = self.problem.k, self._stored(self.left), self._stored(self.right)
        spare = np.maximum(self.capacity - self._blocks_under_way(), 0)
        panel_left = self._held(self.left, self.tall, np.full_like(self.tall, k))
        panel_right = self._held(self.right, np.full_like(self.wide, k), self.wide)
        share = np.minimum(1.0, spare / np.maximum(np.where(self.by_rows, panel_left, panel_right), 1))
        kept = share * (self.count - 1) * np.where(self.by_rows, self.tall * left, self.wide * right) * k
        rows, cols = self._sides()
        read_left = k * left * self.sum_r - np.where(self.by_rows, kept, 0)
        read_right = k * right * self.sum_c - np.where(self.by_rows, 0, kept)
        return (
            np.maximum(read_left, k * left * rows) * self.batches,
            np.maximum(read_right, k * right * cols) * self.batches,
        )

    @property
    def written(self) -> int:
        """Bytes of the result."""
        return self.problem.m * self.problem.n * self._stored(self.out) * self.batches

    def moved(self) -> Column:
        """Return all bytes moved."""
        left, right = self.reads
        moved: Column = left + right + self.written
        return moved

    def _sides(self) -> tuple[int, int]:
        m, n = self.problem.m, self.problem.n
        return (n, m) if self.sample.swap else (m, n)

    def seconds(self) -> Column:
        """Return a rough time: the slowest of arithmetic, reads and writes, plus what cannot overlap."""
        cost, problem = self.cost, self.problem
        loss = 1 + 10 / self.sub + 32 / self.strip + 32 / self.wide
        flops = 2.0 * problem.m * problem.n * problem.k * problem.flops_scale * self.batches
        strips, subs = self.tall / self.strip, problem.k / self.sub
        compute = flops * loss / cost.flops_per_s + self.steps() * cost.step_s
        left_s, left_stolen_s = self._read_s(self.left, self.reads[0], self.strip, self.slab)
        right_s, right_stolen_s = self._read_s(self.right, self.reads[1], self.sub, self.wide)
        reads = left_s + right_s
        compute = compute + left_stolen_s + right_stolen_s
        writes = self._write_s(self.written)
        filling = 2 * reads / np.maximum(subs * self.count, 1)
        draining = writes / np.maximum(self.count * strips, 1)
        busiest: Column = np.maximum(np.maximum(compute, reads), writes)
        total: Column = busiest + np.minimum(filling, reads) + draining
        return total

    def steps(self) -> Column:
        """Return about the number of products."""
        strips, subs = self.tall / self.strip, self.problem.k / self.sub
        count: Column = self.count * strips * subs * (self.batches / self.sample.group)
        return count

    def _read_s(self, operand: Operand, nbytes: Column, rows: Column, cols: Column) -> tuple[Column, Column]:
        """Return the seconds of the reads, and the seconds by which they slow the arithmetic."""
        if operand.in_place:
            return np.zeros(len(nbytes)), np.zeros(len(nbytes))
        if operand.tier != "disk":
            return nbytes / self.cost.host_bytes_per_s, np.zeros(len(nbytes))
        run = _run_bytes(operand, *((cols, rows) if self.sample.swap else (rows, cols)))
        seconds = nbytes / self.cost.read_bytes_per_s * (1 + self.cost.half_run_bytes / run)
        return seconds, nbytes * (self.cost.copy_core_s + self.cost.piece_core_s / run) / self.cost.cores

    def _write_s(self, nbytes: int) -> Column:
        if self.out.tier != "disk":
            return np.full(len(self.strip), nbytes / self.cost.host_bytes_per_s)
        run = _run_bytes(
            self.out, *((self.wide, self.strip) if self.sample.swap else (self.strip, self.wide))
        )
        seconds: Column = nbytes / self.cost.write_bytes_per_s * (1 + self.cost.half_run_bytes / run)
        return seconds


def _groups(batch: tuple[int, ...], group: int) -> int:
    return math.prod(batch[:-1]) * math.ceil(batch[-1] / group)


def _pieces(size: Any, length: Column, align: int) -> Column:
    """Return into how many pieces, at most, the steps cut ``size`` by ``length``."""
    whole = np.where(length >= align, length // align * align, length)
    count: Column = -(-size // np.maximum(whole, 1))
    return count


def _run_bytes(operand: Operand, rows: Column, cols: Column) -> Column:
    """Return the bytes of the contiguous pieces of ``rows x cols`` blocks, shape (choices,)."""
    lead = [1] * (len(operand.shape) - 2)
    base = int(cols.max(initial=1)) + 1
    pairs, place = np.unique(rows * base + cols, return_inverse=True)
    runs = [operand.run_bytes((*lead, int(pair) // base, int(pair) % base)) for pair in pairs]
    return np.array(runs, dtype=float)[place]


def _joined(first: Candidates, second: Candidates) -> Candidates:
    names = ("strip", "slab", "sub", "need_bytes", "moved_bytes", "seconds", "steps", "pass_steps")
    columns = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in names}
    return Candidates(
        choices=[*first.choices, *second.choices],
        shape=np.concatenate([first.shape, second.shape + len(first.choices)]),
        floors=(0, len(first.choices)),
        **columns,
    )
