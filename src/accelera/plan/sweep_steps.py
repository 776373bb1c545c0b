"""From a tile shape to the steps of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from accelera.plan.figures import PlanStep
from accelera.plan.operand import Operand, OperandBlock
from accelera.plan.partition import Span, alike
from accelera.plan.passes import Part, Pass, Pattern, Repeat, grouped

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
        self._walked = [self._axes(operand) for operand in problem.operands]
        sizes = [self.distinct(index) for index in range(len(problem.operands))]
        self._first_id = [sum(sizes[:index]) for index in range(len(sizes))]
        order, reduced = self._order(), problem.reduced
        self._nest = (*(x for x in order if x not in reduced), *(x for x in order if x in reduced))
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
        return math.prod(self._parts[axis] for axis in self._walked[operand])

    @property
    def longest_pass(self) -> int:
        """Most steps of a pass."""
        return min(self.count, self.pass_steps) if self.pass_steps else self.count

    def pattern(self) -> Pattern:
        """Return the passes: turns of the outermost loop some of whose turns make one."""
        if not self.count:
            return Pattern(())
        part = self._cut({}, 0)
        return Pattern((Repeat(1, lambda _: part),) if isinstance(part, Pass) else part)

    def _cut(self, fixed: Mapping[int, range], level: int) -> Part:
        """Return the passes of the loops from ``level`` on, those outside them being at ``fixed`` turns."""
        inside = math.prod(self._parts[axis] for axis in self._nest[level:])
        if not self.pass_steps or inside <= self.pass_steps or level == len(self._nest):
            return Pass(lambda: self._steps(fixed))
        axis = self._nest[level]
        count = self._parts[axis]
        size = max(1, self.pass_steps * count // inside)

        def part(number: int) -> Part:
            members = range(number * size, min((number + 1) * size, count))
            within = {**fixed, axis: members}
            return Pass(lambda: self._steps(within)) if size > 1 else self._cut(within, level + 1)

        return grouped(alike(count, (count - 1,), size, ends=axis in self.problem.reduced), part)

    def _steps(self, fixed: Mapping[int, range]) -> Iterator[PlanStep]:
        """Yield the steps of some turns of the loops; of those not named all."""
        turns = [fixed.get(axis, range(self._parts[axis])) for axis in self._nest]
        for numbers in product(*turns):
            place = dict(zip(self._nest, numbers, strict=True))
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
        for axis in self._walked[index]:
            number = number * self._parts[axis] + place[axis]
        return OperandBlock(
            id=self._first_id[index] + number,
            operand=index,
            region=tuple(slice(start, stop) for start, stop in fitted),
            held_bytes=operand.held_bytes(extent),
            moved_bytes=0 if operand.in_place else operand.stored_bytes(extent),
            run_bytes=operand.run_bytes(extent),
        )
