"""The planner of everything that goes over its operands once: arithmetic, reductions, copies, transposes.

The *space* of a sweep is the shape to which its operands broadcast. It is cut into tiles; a step
computes one tile from one block of each operand. A reduction gives all tiles that differ only along
reduced axes the same block of the result, and visits them one after another. Tile shapes are
enumerated: some follow the order in which one operand lies, some lie between two orders, so that both
sides of a transpose move in pieces as long as the room allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accelera.plan.books import pass_lengths
from accelera.plan.cost import CostModel
from accelera.plan.figures import Alternative
from accelera.plan.forecast import forecast
from accelera.plan.limits import WINDOW, PlanLimits
from accelera.plan.operand import Operand
from accelera.plan.plan import Plan
from accelera.plan.sweep_steps import ElementwiseProblem, ElementwiseSteps, Tile
from accelera.units import format_bytes

_FLOOR = 1 << 12
"""Elements of the smallest tile."""
_NEAR = 1.05
"""Plans that take at most this much longer than the quickest count as quick, and the smallest is taken."""
_STEP_S = 4e-4
"""Seconds that a step takes besides its moves and its arithmetic: threads wake one another."""
_DURABLE_S = 2e-3
"""Seconds until a block of a result in a file, and its line in the journal, are durable."""
_BOOK_BYTES = 512
"""What the run keeps for each access it will make."""


@dataclass(frozen=True)
class _Candidate:
    """A tile shape and its figures."""

    steps: ElementwiseSteps
    window: int
    pool_bytes: int
    """Room for the blocks of all steps under way."""
    need_bytes: int
    """The same with the running states and the books."""
    seconds: float

    @property
    def beside_bytes(self) -> int:
        """Room for what is not a block."""
        return self.need_bytes - self.pool_bytes


def plan_elementwise(
    problem: ElementwiseProblem,
    limits: PlanLimits,
    cost: CostModel,
    *,
    spec: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan that computes ``problem`` within ``limits``, in RAM.

    ``spec`` repeats the tile of an earlier plan. Raises BudgetExceededError, naming the smallest budget that
    would do, when nothing fits.
    """
    capacity_bytes, eviction = limits.capacity_bytes, limits.eviction
    longest, least = pass_lengths(capacity_bytes, eviction)
    if spec is not None:
        found = [_candidate(problem, tuple(spec["tile"]), int(spec["window"]), cost, int(spec["pass_steps"]))]
    else:
        found = _candidates(problem, capacity_bytes, limits.window, cost, least)
    fitting = [each for each in found if each.need_bytes <= capacity_bytes]
    if not fitting:
        space = f"a sweep over {list(problem.shape)}"
        limits.refuse(problem.operation, space, "its smallest tiles", min(each.need_bytes for each in found))
    best = _best(fitting)
    longer = _candidate(problem, best.steps.tile, best.window, cost, longest)
    if spec is None and longer.need_bytes <= capacity_bytes:
        best = longer
    room = min(capacity_bytes - best.beside_bytes, best.pool_bytes + _reusable(problem, best))
    name = problem.operation
    pattern = best.steps.pattern()
    walked = forecast(pattern, problem.operands, room, best.window, cost, eviction, operation=name)
    compulsory = sum(0 if each.in_place else each.nbytes for each in problem.operands)
    return Plan(
        operation=problem.operation,
        operands=problem.operands,
        schedule="one pass",
        shape_note=_note(problem, best),
        budget_bytes=limits.budget_bytes,
        capacity_bytes=room,
        reserved={**limits.reserved, **_beside(problem, best)},
        tier="ram",
        window=best.window,
        forecast=walked,
        lower_bound_bytes=compulsory,
        compulsory_bytes=compulsory,
        pattern=pattern,
        spec={"tile": list(best.steps.tile), "window": best.window, "pass_steps": best.steps.pass_steps},
        alternatives=_losers(problem, fitting, best),
        eviction=eviction,
    )


def _best(found: list[_Candidate]) -> _Candidate:
    """Return the quickest; among those as good as that, the one that takes the least memory."""
    quickest = min(each.seconds for each in found)
    return min(
        (each for each in found if each.seconds <= quickest * _NEAR),
        key=lambda each: (each.need_bytes, each.seconds),
    )


def _candidates(
    problem: ElementwiseProblem, capacity: int, window: int, cost: CostModel, pass_steps: int
) -> list[_Candidate]:
    shapes = dict.fromkeys(_tiles(problem))
    for fewer in sorted({window, min(window, WINDOW), 1}, reverse=True):
        found = [_candidate(problem, tile, fewer, cost, pass_steps) for tile in shapes]
        if min(each.need_bytes for each in found) <= capacity:
            break
    return found


def _tiles(problem: ElementwiseProblem) -> Iterator[Tile]:
    """Yield tile shapes from small to large, in the orders of the operands and between any two."""
    space = problem.shape
    orders = list(dict.fromkeys(each.axes for each in problem.operands if not each.in_place))
    orders = orders or [problem.result.axes]
    units = [tuple(1 for _ in space), problem.units()]
    elements = _FLOOR
    while True:
        for unit in units:
            for first in orders:
                yield _filled(space, unit, elements, first)
                for second in orders:
                    if second != first:
                        yield from _between(space, unit, elements, first, second)
        if elements >= math.prod(space):
            return
        elements *= 2


def _between(space: Tile, unit: Tile, elements: int, first: Tile, second: Tile) -> Iterator[Tile]:
    """Yield tiles with runs of growing length along ``first`` and the rest along ``second``."""
    run = 16
    while run < elements:
        start = _filled(space, unit, run, first)
        yield _filled(space, start, elements, second)
        run *= 2


def _filled(space: Tile, start: Tile, elements: int, order: Tile) -> Tile:
    """Grow a tile from ``start`` along ``order``, fastest axis first, to about ``elements``."""
    tile = [min(least, size) for least, size in zip(start, space, strict=True)]
    for axis in reversed(order):
        room = elements // max(math.prod(tile), 1)
        if room <= 1:
            break
        step = tile[axis]
        tile[axis] = min(space[axis], step * room)
    return tuple(max(each, 1) for each in tile)


def _candidate(
    problem: ElementwiseProblem, tile: Tile, window: int, cost: CostModel, pass_steps: int
) -> _Candidate:
    steps = ElementwiseSteps(problem, tile, pass_steps)
    pool = sum(
        operand.held_bytes(steps.extent(index)) * min(window, steps.distinct(index))
        for index, operand in enumerate(problem.operands)
    )
    beside = sum(_beside_sizes(problem, steps).values())
    return _Candidate(steps, window, pool, pool + beside, _seconds(steps, window, cost))


def _beside(problem: ElementwiseProblem, found: _Candidate) -> dict[str, int]:
    return {name: size for name, size in _beside_sizes(problem, found.steps).items() if size}


def _beside_sizes(problem: ElementwiseProblem, steps: ElementwiseSteps) -> dict[str, int]:
    """Return the bytes of running states, and of what the run remembers of its accesses."""
    kept = math.prod(steps.extent(len(problem.leaves)))
    accesses = steps.longest_pass * (1 + sum(not each.in_place for each in problem.operands))
    return {"states": kept * problem.state_bytes, "books": accesses * _BOOK_BYTES}


def _reusable(problem: ElementwiseProblem, found: _Candidate) -> int:
    """Return the bytes of operands that several tiles share: room in which they are read once."""
    held = 0
    for index, operand in enumerate(problem.leaves):
        if not operand.in_place and found.steps.distinct(index) < found.steps.count:
            held += math.prod(operand.shape) * operand.held_dtype.itemsize
    return held


def _seconds(steps: ElementwiseSteps, window: int, cost: CostModel) -> float:
    """Return a rough time: the slowest of arithmetic, reads and writes, and what cannot overlap."""
    problem = steps.problem
    compute = math.prod(problem.shape) * problem.seconds_per_element
    reads = sum(_moved_s(steps, index, cost.read_s) for index in range(len(problem.leaves)))
    writes = _moved_s(steps, len(problem.leaves), cost.write_s)
    if problem.result.tier == "disk":
        writes += steps.distinct(len(problem.leaves)) * _DURABLE_S
    beside = steps.count * _STEP_S
    if window == 1:
        return compute + reads + writes + beside
    return max(compute, reads, writes) + (reads + writes) / max(steps.count, 1) + beside


def _moved_s(steps: ElementwiseSteps, index: int, rate: Any) -> float:
    operand = steps.problem.operands[index]
    if operand.in_place:
        return 0.0
    extent = steps.extent(index)
    seconds: float = rate(operand.nbytes, operand.run_bytes(extent), operand.tier)
    return seconds * _chunk_waste(operand, extent)


def _chunk_waste(operand: Operand, extent: Tile) -> float:
    """Return how often a chunk is decoded, on average, when blocks of ``extent`` are moved."""
    if operand.chunk is None:
        return 1.0
    sizes = zip(extent, operand.chunk, operand.shape, strict=True)
    return math.prod(
        1.0 if part == whole or part % chunk == 0 else (part + chunk - 1) / part
        for part, chunk, whole in sizes
    )


def _note(problem: ElementwiseProblem, found: _Candidate) -> str:
    tile = " x ".join(map(str, found.steps.tile))
    space = " x ".join(map(str, problem.shape))
    return f"{found.steps.count} tiles of {tile} over {space}, {found.window} under way"


def _losers(
    problem: ElementwiseProblem, found: list[_Candidate], best: _Candidate
) -> tuple[Alternative, ...]:
    """Return the quickest tile of each other shape that was considered, with the reason it lost."""
    losers: dict[Tile, Alternative] = {}
    moved = sum(0 if each.in_place else each.nbytes for each in problem.operands)
    for each in sorted(found, key=lambda each: each.seconds):
        whole = tuple(a == b for a, b in zip(each.steps.tile, problem.shape, strict=True))
        if each.steps.tile != best.steps.tile:
            reason = _reason(each, best)
            losers.setdefault(whole, Alternative(_note(problem, each), moved, each.seconds, reason))
    return tuple(losers.values())[:3]


def _reason(other: _Candidate, best: _Candidate) -> str:
    if other.seconds > best.seconds * _NEAR:
        return f"{other.seconds / best.seconds:.2f} x the time"
    return f"no quicker, and takes {format_bytes(other.need_bytes - best.need_bytes)} more"
