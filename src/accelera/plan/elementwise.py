"""Planner of everything that goes over its operands once: arithmetic, reductions, copies, transposes.

The *space* of such an operation is the shape to which its operands broadcast. It is cut into tiles; a step
computes one tile from one block of each operand. A reduction gives all tiles that differ only along
reduced axes the same block of the result, and visits them one after another. Tile shapes are
enumerated: some follow the order in which one operand lies, some lie between two orders, so that both
sides of a transpose move in pieces as long as the room allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from accelera.plan.cost import CostModel, pass_lengths
from accelera.plan.dry_run import forecast
from accelera.plan.limits import WINDOW, PlanLimits
from accelera.plan.partition import Span, alike
from accelera.plan.plan import Plan
from accelera.plan.saved_choices import require_known_choices, whole_choice, whole_value, window_choice
from accelera.plan.types import Alternative, Operand, OperandBlock, PlanStep
from accelera.plan.walk import Part, Pass, Pattern, Repeat, grouped
from accelera.units import format_bytes

Tile = tuple[int, ...]


@dataclass(frozen=True)
class ElementwiseProblem:
    """One pass over operands that broadcast to a space."""

    operation: str
    shape: Tile
    """The space; every operand has as many axes, of its length or of length 1."""
    leaves: tuple[Operand, ...]
    result: Operand
    """Of length 1 along reduced axes."""
    reduced: tuple[int, ...] = ()
    """Axes along which the result is shared."""
    state_bytes: int = 0
    """Bytes of running states per element of a block of the result."""
    seconds_per_element: float = 1e-9
    """Predicted seconds of arithmetic per element of the space."""
    operators: int = 1
    """Operations on each element of the space."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The leaves, then the result."""
        return (*self.leaves, self.result)

    def units(self) -> Tile:
        """Return the smallest tile that cuts no chunk: the largest chunk along each axis."""
        chunks = [each.chunk for each in self.operands if each.chunk is not None and not each.in_place]
        return tuple(max((chunk[axis] for chunk in chunks), default=1) for axis in range(len(self.shape)))


class ElementwiseSteps:
    """The steps of one sweep with one tile shape, in passes of at most ``pass_steps`` (0: one pass)."""

    def __init__(self, problem: ElementwiseProblem, tile: Tile, pass_steps: int = 0) -> None:
        self.problem = problem
        self.tile = tile
        self.pass_steps = pass_steps
        self._parts = tuple(
            max(math.ceil(size / part), int(axis in problem.reduced))
            for axis, (size, part) in enumerate(zip(problem.shape, tile, strict=True))
        )
        self._axes_of = [self._axes(operand) for operand in problem.operands]
        sizes = [self.distinct(index) for index in range(len(problem.operands))]
        self._first_id = [sum(sizes[:index]) for index in range(len(sizes))]
        order, reduced = self._order(), problem.reduced
        self._loop_order = (*(x for x in order if x not in reduced), *(x for x in order if x in reduced))
        """Axes from the outermost loop to the innermost."""

    @property
    def count(self) -> int:
        """Number of steps."""
        return math.prod(self._parts)

    def _axes(self, operand: Operand) -> Tile:
        """Return the axes along which ``operand`` has more than one element."""
        return tuple(axis for axis, size in enumerate(operand.shape) if size != 1)

    def extent(self, operand: int) -> Tile:
        """Return the shape of the largest block of an operand."""
        shape = self.problem.operands[operand].shape
        return tuple(min(part, size) for part, size in zip(self.tile, shape, strict=True))

    def distinct(self, operand: int) -> int:
        """Return how many blocks an operand is cut into."""
        return math.prod(self._parts[axis] for axis in self._axes_of[operand])

    @property
    def longest_pass(self) -> int:
        """Most steps of a pass."""
        return min(self.count, self.pass_steps) if self.pass_steps else self.count

    def pattern(self) -> Pattern:
        """Return the passes: each is some iterations of one loop, cut from the outermost loop inwards."""
        if not self.count:
            return Pattern(())
        part = self._cut({}, 0)
        return Pattern((Repeat(1, lambda _: part),) if isinstance(part, Pass) else part)

    def _cut(self, fixed: Mapping[int, range], level: int) -> Part:
        """Return the passes of the loops from ``level`` inwards; the outer ones are at ``fixed`` ones."""
        inside = math.prod(self._parts[axis] for axis in self._loop_order[level:])
        if not self.pass_steps or inside <= self.pass_steps or level == len(self._loop_order):
            return Pass(lambda: self._steps(fixed))
        axis = self._loop_order[level]
        count = self._parts[axis]
        size = max(1, self.pass_steps * count // inside)

        def part(number: int) -> Part:
            members = range(number * size, min((number + 1) * size, count))
            within = {**fixed, axis: members}
            return Pass(lambda: self._steps(within)) if size > 1 else self._cut(within, level + 1)

        return grouped(alike(count, (count - 1,), size, ends=axis in self.problem.reduced), part)

    def _steps(self, fixed: Mapping[int, range]) -> Iterator[PlanStep]:
        """Yield the steps of the ``fixed`` iterations, and of all iterations of the other loops."""
        turns = [fixed.get(axis, range(self._parts[axis])) for axis in self._loop_order]
        for numbers in product(*turns):
            place = dict(zip(self._loop_order, numbers, strict=True))
            first = all(place[axis] == 0 for axis in self.problem.reduced)
            last = all(place[axis] == self._parts[axis] - 1 for axis in self.problem.reduced)
            yield self._step(place, first, last)

    def _order(self) -> Tile:
        """Return the axes from the slowest to the fastest of the largest operand."""
        moved = [each for each in self.problem.operands if not each.in_place]
        return max(moved or [self.problem.result], key=lambda each: each.nbytes).axes

    def _step(self, place: dict[int, int], first: bool, last: bool) -> PlanStep:
        bounds = tuple(self._span(axis, place[axis]) for axis in range(len(place)))
        reads = tuple(self._block(index, place, bounds) for index in range(len(self.problem.leaves)))
        write = self._block(len(self.problem.leaves), place, bounds)
        elements = math.prod(stop - start for start, stop in bounds)
        seconds = elements * self.problem.seconds_per_element
        return PlanStep(reads, write, first, last, bounds, seconds, elements * self.problem.operators)

    def _span(self, axis: int, index: int) -> Span:
        start = index * self.tile[axis]
        return start, min(start + self.tile[axis], self.problem.shape[axis])

    def _block(self, index: int, place: dict[int, int], bounds: tuple[Span, ...]) -> OperandBlock:
        operand = self.problem.operands[index]
        fitted = [(0, 1) if size == 1 else span for size, span in zip(operand.shape, bounds, strict=True)]
        extent = tuple(stop - start for start, stop in fitted)
        number = 0
        for axis in self._axes_of[index]:
            number = number * self._parts[axis] + place[axis]
        return OperandBlock(
            id=self._first_id[index] + number,
            operand=index,
            region=tuple(slice(start, stop) for start, stop in fitted),
            held_bytes=operand.held_bytes(extent),
            moved_bytes=0 if operand.in_place else operand.stored_bytes(extent),
            run_bytes=operand.run_bytes(extent),
        )


_FLOOR = 1 << 12
"""Elements of the smallest tile."""
_NEAR = 1.05
"""Plans that take at most this much longer than the quickest count as quick, and the smallest is taken."""
_STEP_S = 4e-4
"""Seconds that a step takes besides its moves and its arithmetic: threads wake one another."""
_DURABLE_S = 2e-3
"""Seconds until a block of a result in a file, and its line in the journal, are durable."""
_CHUNK_S = 4e-4
"""Seconds that the library of a chunked array takes for each chunk besides moving its bytes."""
_RECORD_BYTES = 512
"""Bytes that the run records for each access to come."""


@dataclass(frozen=True)
class _Candidate:
    """A tile shape and its figures."""

    steps: ElementwiseSteps
    window: int
    pool_bytes: int
    """Bytes of the blocks of all steps under way."""
    need_bytes: int
    """The same, plus the running states and the run's records."""
    seconds: float

    @property
    def extra_bytes(self) -> int:
        """Bytes of all that is not a block."""
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
        found = [_candidate(problem, *_choices_of(problem, spec, cost))]
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
    room = min(capacity_bytes - best.extra_bytes, best.pool_bytes + _reusable(problem, best))
    name = problem.operation
    pattern = best.steps.pattern()
    walked = forecast(pattern, problem.operands, room, best.window, cost, eviction, operation=name)
    compulsory = sum(0 if each.in_place else each.nbytes for each in problem.operands)
    return Plan(
        operation=problem.operation,
        operands=problem.operands,
        schedule="one pass",
        shape_note=_shape_note(problem, best),
        budget_bytes=limits.budget_bytes,
        capacity_bytes=room,
        reserved={**limits.reserved, **_reserved(problem, best)},
        tier="ram",
        window=best.window,
        forecast=walked,
        lower_bound_bytes=compulsory,
        compulsory_bytes=compulsory,
        pattern=pattern,
        spec={"tile": list(best.steps.tile), "window": best.window, "pass_steps": best.steps.pass_steps},
        alternatives=_alternatives(problem, fitting, best),
        eviction=eviction,
    )


def _choices_of(
    problem: ElementwiseProblem, spec: Mapping[str, Any], cost: CostModel
) -> tuple[Tile, int, CostModel, int]:
    """Return tile, window, cost and pass length of an earlier plan, each checked."""
    require_known_choices(spec, ("tile", "window", "pass_steps"))
    tile = tuple(
        whole_value(size, "tile", min(1, axis))
        for size, axis in zip(spec["tile"], problem.shape, strict=True)
    )
    return tile, window_choice(spec), cost, whole_choice(spec, "pass_steps", 0)


def _best(found: list[_Candidate]) -> _Candidate:
    """Return the candidate of least memory among those about as quick as the quickest."""
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
                yield _grow_tile(space, unit, elements, first)
                for second in orders:
                    if second != first:
                        yield from _mixed_order_tiles(space, unit, elements, first, second)
        if elements >= math.prod(space):
            return
        elements *= 2


def _mixed_order_tiles(space: Tile, unit: Tile, elements: int, first: Tile, second: Tile) -> Iterator[Tile]:
    """Yield tiles with runs of growing length along ``first``, filled up along ``second``."""
    run = 16
    while run < elements:
        start = _grow_tile(space, unit, run, first)
        yield _grow_tile(space, start, elements, second)
        run *= 2


def _grow_tile(space: Tile, start: Tile, elements: int, order: Tile) -> Tile:
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
    beside = sum(_extra_bytes(problem, steps).values())
    return _Candidate(steps, window, pool, pool + beside, _seconds(steps, window, cost))


def _reserved(problem: ElementwiseProblem, found: _Candidate) -> dict[str, int]:
    return {name: size for name, size in _extra_bytes(problem, found.steps).items() if size}


def _extra_bytes(problem: ElementwiseProblem, steps: ElementwiseSteps) -> dict[str, int]:
    """Return the bytes of running states, and of the run's records of its accesses."""
    kept = math.prod(steps.extent(len(problem.leaves)))
    accesses = steps.longest_pass * (1 + sum(not each.in_place for each in problem.operands))
    return {"states": kept * problem.state_bytes, "books": accesses * _RECORD_BYTES}


def _reusable(problem: ElementwiseProblem, found: _Candidate) -> int:
    """Return the bytes of operands that several tiles share: with them in the pool, each is read once."""
    held = 0
    for index, operand in enumerate(problem.leaves):
        if not operand.in_place and found.steps.distinct(index) < found.steps.count:
            held += math.prod(operand.shape) * operand.held_dtype.itemsize
    return held


def _seconds(steps: ElementwiseSteps, window: int, cost: CostModel) -> float:
    """Return a rough time: the slowest of arithmetic, reads and writes, plus what cannot overlap."""
    problem = steps.problem
    compute = math.prod(problem.shape) * problem.seconds_per_element
    reads = sum(_read_s(steps, index, cost) for index in range(len(problem.leaves)))
    writes = _write_s(steps, len(problem.leaves), cost)
    if problem.result.tier == "disk":
        writes += steps.distinct(len(problem.leaves)) * _DURABLE_S
    beside = steps.count * _STEP_S
    if window == 1:
        return compute + reads + writes + beside
    return max(compute, reads, writes) + (reads + writes) / max(steps.count, 1) + beside


def _read_s(steps: ElementwiseSteps, index: int, cost: CostModel) -> float:
    operand, extent = steps.problem.operands[index], steps.extent(index)
    run = operand.run_bytes(extent)
    gap = operand.gap_bytes(extent)
    if operand.dense and operand.chunk is None and gap < cost.half_run_bytes:
        # Small gaps between pieces are read as well, rather than with one request for each piece.
        run = int(run * cost.half_run_bytes / max(gap, 1))
    return _moved_s(operand, extent, cost.read_s(operand.nbytes, run, operand.tier))


def _write_s(steps: ElementwiseSteps, index: int, cost: CostModel) -> float:
    operand, extent = steps.problem.operands[index], steps.extent(index)
    return _moved_s(operand, extent, cost.write_s(operand.nbytes, operand.run_bytes(extent), operand.tier))


def _moved_s(operand: Operand, extent: Tile, seconds: float) -> float:
    """Return the time of moving all blocks of an operand, whose bytes alone would take ``seconds``."""
    if operand.in_place:
        return 0.0
    return seconds * _decodes_per_chunk(operand, extent) + _chunk_accesses(operand, extent) * _CHUNK_S


def _decodes_per_chunk(operand: Operand, extent: Tile) -> float:
    """Return how often each chunk is decoded, on average, when blocks of ``extent`` are moved."""
    if operand.chunk is None:
        return 1.0
    sizes = zip(extent, operand.chunk, operand.shape, strict=True)
    return math.prod(
        1.0 if part == whole or part % chunk == 0 else (part + chunk - 1) / part
        for part, chunk, whole in sizes
    )


def _chunk_accesses(operand: Operand, extent: Tile) -> int:
    """Return the number of chunk accesses by all blocks of ``extent``; 0 for an operand without chunks."""
    if operand.chunk is None:
        return 0
    sizes = zip(extent, operand.chunk, operand.shape, strict=True)
    return math.prod(
        -(-size // part) + -(-size // chunk) - -(-size // math.lcm(part, chunk)) if size else 0
        for part, chunk, size in sizes
    )


def _shape_note(problem: ElementwiseProblem, found: _Candidate) -> str:
    tile = " x ".join(map(str, found.steps.tile))
    space = " x ".join(map(str, problem.shape))
    return f"{found.steps.count} tiles of {tile} over {space}, {found.window} under way"


def _alternatives(
    problem: ElementwiseProblem, found: list[_Candidate], best: _Candidate
) -> tuple[Alternative, ...]:
    """Return the quickest rejected tile of each kind, with the reason why it was rejected."""
    alternatives: dict[Tile, Alternative] = {}
    moved = sum(0 if each.in_place else each.nbytes for each in problem.operands)
    for each in sorted(found, key=lambda each: each.seconds):
        whole = tuple(a == b for a, b in zip(each.steps.tile, problem.shape, strict=True))
        if each.steps.tile != best.steps.tile:
            reason = _reason(each, best)
            alternatives.setdefault(
                whole, Alternative(_shape_note(problem, each), moved, each.seconds, reason)
            )
    return tuple(alternatives.values())[:3]


def _reason(other: _Candidate, best: _Candidate) -> str:
    if other.seconds > best.seconds * _NEAR:
        return f"{other.seconds / best.seconds:.2f} x the time"
    return f"no quicker, and takes {format_bytes(other.need_bytes - best.need_bytes)} more"
