"""Passes of a plan, and the one order in which its accesses reach the pool.

A plan of very many steps runs in *passes*. A pass is some hundreds or thousands of steps that share what the
pool holds; at its end everything leaves the pool but blocks of the result that are not finished. So a pass
knows nothing of the others, its records are made afresh, and passes that look alike do alike: the figures of
a billion steps are those of a few passes, each times how often it comes. What several passes need is read
by each of them, so passes are long beside what the pool holds.

The runner and the forecast both follow the same walk, so what is admitted, evicted and freed, and
when, is the same on paper and in the run. At most ``window`` steps are under way; the oldest is
retired (its pins dropped, its finished result freed) before the next one is admitted. A result
block stays pinned from its first step to its last. At the end of a pass all steps are retired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from accelera.plan.types import OperandBlock, PlanStep


@dataclass(frozen=True)
class Pass:
    """Steps that share the pool."""

    steps: Callable[[], Iterator[PlanStep]]
    """Generates the steps, the same ones every time."""


@dataclass(frozen=True)
class Repeat:
    """A part of a plan that comes ``count`` times in a row, each time elsewhere."""

    count: int
    part: Callable[[int], Part]
    """Returns the part of that number, from 0."""


Part = Pass | tuple[Repeat, ...]
"""One pass, or parts that are themselves repeated."""


@dataclass(frozen=True)
class Pattern:
    """All passes of a plan."""

    kinds: tuple[Repeat, ...]
    """What there is, in the order in which each kind first comes; of each, the first part stands for all."""
    in_order: Callable[[], Iterator[Pass]] | None = None
    """Generates the passes; None: ``kinds`` are in order themselves."""

    @classmethod
    def of(cls, steps: Callable[[], Iterator[PlanStep]]) -> Pattern:
        """Return the pattern of a plan that is one pass."""
        return cls((Repeat(1, lambda _: Pass(steps)),))

    def passes(self) -> Iterator[Pass]:
        """Yield the passes in order."""
        return passes_of(self.kinds) if self.in_order is None else self.in_order()

    def steps(self) -> Iterator[PlanStep]:
        """Yield the steps of all passes in order."""
        for each in self.passes():
            yield from each.steps()


def passes_of(parts: Part) -> Iterator[Pass]:
    """Yield the passes of some parts in order."""
    if isinstance(parts, Pass):
        yield parts
        return
    for repeat in parts:
        for number in range(repeat.count):
            yield from passes_of(repeat.part(number))


def grouped(groups: list[tuple[int, int]], part: Callable[[int], Part]) -> tuple[Repeat, ...]:
    """Return the parts of numbered groups, those of each (first, stop) alike."""
    return tuple(Repeat(stop - first, _Shifted(part, first)) for first, stop in groups)


@dataclass(frozen=True)
class _Shifted:
    part: Callable[[int], Part]
    first: int

    def __call__(self, number: int) -> Part:
        return self.part(self.first + number)


class PoolDriver(Protocol):
    """Ledger that a walk drives: on paper alone, or with the buffer pool in a run."""

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        """Begin a pass; of the one before, which ended with ``step``, only the blocks ``held`` stay.

        Called before the first step, too, with nothing held and -1.
        """

    def wait(self, step: int) -> None:
        """Return when ``step`` is done: computed, and its result stored if it finished one."""

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
        """Pin ``block``, making room if need be."""

    def unpin(self, block: OperandBlock, step: int) -> None:
        """Drop the pin that ``step``, done now, held."""

    def free(self, block: OperandBlock, step: int) -> None:
        """Give up a block whose life is over."""


def walk(passes: Iterable[Pass], window: int, driver: PoolDriver) -> Iterator[tuple[int, PlanStep]]:
    """Admit each step's blocks and yield its index and itself, pass by pass."""
    held: set[int] = set()
    count = 0
    for each in passes:
        driver.begin(each, held, count - 1)
        for index, step in walk_steps(each.steps(), window, driver, count):
            count = index + 1
            if step.write.held_bytes:
                (held.discard if step.last else held.add)(step.write.id)
            yield index, step


def walk_steps(
    steps: Iterable[PlanStep], window: int, driver: PoolDriver, first: int = 0
) -> Iterator[tuple[int, PlanStep]]:
    """Admit the blocks of the steps of one pass, whose indices count from ``first``."""
    under_way: deque[tuple[int, PlanStep]] = deque()
    for index, step in enumerate(steps, first):
        if len(under_way) == window:
            retire(*under_way.popleft(), driver)
        for block in step.reads:
            if block.held_bytes:
                driver.admit(block, index, write=False)
        if step.write.held_bytes:
            driver.admit(step.write, index, write=True)
        under_way.append((index, step))
        yield index, step
    while under_way:
        retire(*under_way.popleft(), driver)


def retire(index: int, step: PlanStep, driver: PoolDriver) -> None:
    """Wait for a step, then drop its pins."""
    driver.wait(index)
    for block in step.reads:
        if block.held_bytes:
            driver.unpin(block, index)
    if not step.write.held_bytes:
        return
    if step.last:
        driver.free(step.write, index)
    elif not step.first:
        driver.unpin(step.write, index)
