"""The planner of Gram matrices: ``G = Aᴴ A`` at half the products, and a little over half the reads.

Only the tiles of the upper triangle are computed, and each goes to its place and, conjugated and
transposed, to the mirrored one. Over a tile run the slabs of the depth of A; every other tile runs
them backwards, and the tiles of one band go to and fro, so that what the pool still holds at a turn
is used again. A matrix with few columns is one tile: A is read once, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from accelera.errors import BudgetExceededError
from accelera.plan.cost import CostModel
from accelera.plan.figures import Alternative, Forecast, Step
from accelera.plan.forecast import forecast
from accelera.plan.operand import Block, BlockTable, Operand
from accelera.plan.partition import Span, split
from accelera.plan.plan import Plan
from accelera.units import format_bytes

WINDOW = 3
LONGEST_EDGE = 1 << 16
"""Longest edge of a tile: a row of one fits any staging buffer."""
_DEPTHS = (8192, 4096, 2048, 1024, 512, 256, 128, 64)
_SHORTEST_EDGE = 64
_WALKED = 6
_BYTES_WEIGHT = 0.25


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
    window: int


class GramSteps:
    """Generates the steps of one Gram matrix with one choice."""

    def __init__(self, problem: GramProblem, choice: GramChoice, cost: CostModel) -> None:
        self._problem = problem
        self.choice = choice
        self._cost = cost
        self._table = BlockTable(problem.operands)
        self.edges = split(problem.size, choice.parts, problem.align(-1)) if problem.size else []
        slabs = math.ceil(problem.depth / choice.slab) if problem.depth else 1
        self.slabs = split(problem.depth, slabs, problem.align(-2)) if problem.depth else [(0, 0)]

    def __call__(self) -> Iterator[Step]:
        """Yield the steps, first to last."""
        backwards = False
        for batch in product(*[range(size) for size in self._problem.batch]):
            for rows, cols in self._tiles():
                yield from self._tile_steps(tuple((i, i + 1) for i in batch), rows, cols, backwards)
                backwards = not backwards

    def _tiles(self) -> Iterator[tuple[Span, Span]]:
        for index, rows in enumerate(self.edges):
            band = self.edges[index:]
            yield from ((rows, cols) for cols in (band if index % 2 == 0 else reversed(band)))

    def _tile_steps(self, batch: tuple[Span, ...], rows: Span, cols: Span, backwards: bool) -> Iterator[Step]:
        write = self._written(batch, rows, cols)
        slabs = self.slabs[::-1] if backwards else self.slabs
        for index, slab in enumerate(slabs):
            reads = tuple(self._table.block(0, (*batch, slab, each)) for each in dict.fromkeys((rows, cols)))
            empty = slab[0] == slab[1]
            first, last = index == 0, index == len(slabs) - 1
            yield Step(
                () if empty else reads, write, first, last, rows == cols, self._compute_s(slab, rows, cols)
            )

    def _written(self, batch: tuple[Span, ...], rows: Span, cols: Span) -> Block:
        """Return a tile of G; one beside the diagonal is written twice."""
        block = self._table.block(1, (*batch, rows, cols))
        return block if rows == cols else replace(block, moved_bytes=2 * block.moved_bytes)

    def _compute_s(self, slab: Span, rows: Span, cols: Span) -> float:
        share = 0.5 if rows == cols else 1.0
        m, k, n = rows[1] - rows[0], slab[1] - slab[0], cols[1] - cols[0]
        return self._cost.gemm_s(m, k, n, self._problem.flops_scale * share)


@dataclass(frozen=True)
class _Figures:
    """Closed forms of one choice."""

    choice: GramChoice
    need_bytes: int
    seconds: float
    moved_bytes: float

    @property
    def score(self) -> float:
        """Its time, and a little for every byte it moves."""
        return _score(self.seconds, self.moved_bytes)


def plan_gram(
    problem: GramProblem,
    *,
    capacity_bytes: int,
    cost: CostModel,
    budget_bytes: int | None = None,
    reserved: Mapping[str, int] | None = None,
    tier: str = "ram",
    spec: Mapping[str, Any] | None = None,
    window: int = WINDOW,
    host_staging_bytes: int = 0,
) -> Plan:
    """Return the plan that computes ``problem`` with blocks of at most ``capacity_bytes``.

    ``spec`` repeats the choices of an earlier plan. Raises BudgetExceededError, naming the smallest
    budget that would do, when nothing fits.
    """
    kept = dict(reserved or {})
    choices = [GramChoice(**spec)] if spec is not None else _choices(problem, window)
    found = [_figures(problem, each, capacity_bytes, cost) for each in choices]
    fitting = sorted(
        (each for each in found if each.need_bytes <= capacity_bytes), key=lambda each: each.score
    )
    if not fitting and spec is None and window > 1:
        return plan_gram(
            problem,
            capacity_bytes=capacity_bytes,
            cost=cost,
            budget_bytes=budget_bytes,
            reserved=reserved,
            tier=tier,
            window=1,
            host_staging_bytes=host_staging_bytes,
        )
    if not fitting:
        _refuse(problem, min(each.need_bytes for each in found), capacity_bytes, kept, budget_bytes, tier)
    walked = [
        (steps, forecast(steps, problem.operands, capacity_bytes, steps.choice.window, cost))
        for steps in (GramSteps(problem, each.choice, cost) for each in fitting[:_WALKED])
    ]
    steps, best = min(walked, key=lambda pair: _score(pair[1].seconds, pair[1].moved_bytes))
    compulsory = sum(0 if each.in_place else each.nbytes for each in problem.operands)
    return Plan(
        operation="gram",
        operands=problem.operands,
        schedule="single tile" if len(steps.edges) <= 1 else "G-stationary",
        shape_note=_note(steps),
        budget_bytes=budget_bytes,
        capacity_bytes=capacity_bytes,
        reserved=kept,
        tier=tier,
        window=steps.choice.window,
        forecast=best,
        lower_bound_bytes=compulsory,
        compulsory_bytes=compulsory,
        make_steps=steps,
        spec=vars(steps.choice),
        alternatives=_losers(walked, best),
        host_staging_bytes=host_staging_bytes,
    )


def _choices(problem: GramProblem, window: int) -> list[GramChoice]:
    """Return tile counts, each with every depth of a slab."""
    size, depth = problem.size, problem.depth
    most = max(1, math.ceil(size / _SHORTEST_EDGE))
    least = max(1, math.ceil(size / LONGEST_EDGE))
    counts = [*range(least, min(most, least + 24))]
    while not counts or counts[-1] < most:
        counts.append(min(most, (counts[-1] * 5 + 3) // 4 if counts else least))
    depths = sorted({max(depth, 1), *[each for each in _DEPTHS if each < depth]})
    return [GramChoice(parts, slab, window) for parts in counts for slab in depths]


def _figures(problem: GramProblem, choice: GramChoice, capacity: int, cost: CostModel) -> _Figures:
    steps = GramSteps(problem, choice, cost)
    edge = max((stop - start for start, stop in steps.edges), default=0)
    slab = max(stop - start for start, stop in steps.slabs)
    lead = (1,) * len(problem.batch)
    parts, batches = len(steps.edges), math.prod(problem.batch)
    tiles = parts * (parts + 1) // 2 * batches
    blocks = choice.window * (1 if parts == 1 else 2)
    tile_bytes = problem.g.held_bytes((*lead, edge, edge)) * min(tiles, 1 if choice.window == 1 else 2)
    need = tile_bytes + blocks * problem.a.held_bytes((*lead, slab, edge))
    panel = problem.a.held_bytes((*lead, problem.depth, edge))
    kept = min(1.0, max(capacity - need, 0) / panel) if panel else 1.0
    passes = parts - kept * (parts - 1) / 2
    read = 0.0 if problem.a.in_place else problem.a.nbytes * passes
    written = 0 if problem.g.in_place else problem.g.nbytes
    run = problem.a.run_bytes((*lead, slab, edge))
    reads = cost.read_s(int(read), run, problem.a.tier)
    writes = cost.write_s(written, problem.g.run_bytes((*lead, edge, edge)), problem.g.tier)
    flops = batches * 0.5 * (1 + 1 / max(parts, 1)) * problem.flops_scale
    compute = cost.gemm_s(problem.size, problem.depth, problem.size, flops)
    compute *= 1 + 10 / max(slab, 1) + 32 / max(edge, 1)
    compute += tiles * len(steps.slabs) * cost.step_s
    seconds = compute + reads + writes if choice.window == 1 else max(compute, reads, writes)
    return _Figures(choice, need, seconds + reads / max(tiles * len(steps.slabs), 1), read + written)


def _score(seconds: float, moved_bytes: float) -> float:
    return seconds * math.exp(_BYTES_WEIGHT * math.log(max(moved_bytes, 1.0)))


def _note(steps: GramSteps) -> str:
    edge = max((stop - start for start, stop in steps.edges), default=0)
    depth = max(stop - start for start, stop in steps.slabs)
    parts = len(steps.edges)
    return f"{parts * (parts + 1) // 2} tiles of G, edges up to {edge}; blocks of A up to {depth} deep"


def _losers(walked: list[tuple[GramSteps, Forecast]], best: Forecast) -> tuple[Alternative, ...]:
    others = [(steps, found) for steps, found in walked if found is not best]
    return tuple(
        Alternative(
            _note(steps),
            found.moved_bytes,
            found.seconds,
            f"{found.seconds / max(best.seconds, 1e-9):.2f} x the time, "
            f"{found.moved_bytes / max(best.moved_bytes, 1):.2f} x the bytes",
        )
        for steps, found in others[:3]
    )


def _refuse(
    problem: GramProblem, need: int, capacity: int, reserved: Mapping[str, int], budget: int | None, tier: str
) -> None:
    beside = sum(reserved.values()) if tier == "ram" else 0
    needed = need + beside
    asked = capacity + beside if budget is None else budget
    raise BudgetExceededError(
        f"[gram] of {list(problem.a.shape)} in {problem.g.held_dtype} does not fit a budget of "
        f"{format_bytes(asked)} ({asked} bytes): its smallest tiles need {format_bytes(needed)} "
        f"({needed} bytes), of which {format_bytes(beside)} is reserved for what is no tile; give a "
        f"budget of at least {needed} bytes",
        needed_bytes=needed,
        budget_bytes=asked,
    )
