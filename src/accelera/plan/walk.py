"""Passes of a plan, and the one order in which its accesses reach the pool.

A plan of very many steps runs in *passes*. A pass is some hundreds or thousands of steps that share the
pool's contents; at its end everything leaves the pool except unfinished blocks of the result. So each pass
is independent of the others, with records of its own, and equal passes behave alike: the figures of a
billion steps are those of a few passes, each times its count. A block that several passes need is read by
each of them, so a pass is made long compared with the pool's capacity.

The runner and the forecast follow the same walk, so admissions, evictions and frees come in the same
order in both. At most ``window`` steps are under way; the oldest is
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
    """A part of a plan that comes ``count`` times in a row, each time on other blocks."""

    count: int
    part: Callable[[int], Part]
    """Returns the part of that number, from 0."""


Part = Pass | tuple[Repeat, ...]
"""One pass, or parts that are themselves repeated."""


@dataclass(frozen=True)
class Pattern:
    """All passes of a plan."""

    kinds: tuple[Repeat, ...]
    """The kinds of parts, in the order in which each first comes; a kind's first part stands for all."""
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
    """Return the parts of numbered groups as repeats; the groups within each (first, stop) are alike."""
    return tuple(Repeat(stop - first, _Shifted(part, first)) for first, stop in groups)


@dataclass(frozen=True)
class _Shifted:
    """``part`` with its numbers counted from ``first``."""

    part: Callable[[int], Part]
    first: int

    def __call__(self, number: int) -> Part:
        return self.part(self.first + number)


class PoolDriver(Protocol):
    """The pool that a walk drives: a ledger in a forecast, the buffer pool in a run."""

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        """Begin a pass; of the previous one, which ended with ``step``, only the blocks ``held`` stay.

        Also called before the first pass, with nothing held and step -1.
        """

    def wait(self, step: int) -> None:
        """Wait until ``step`` is done: computed, and its result block stored if it finished one."""

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
        """Pin ``block``, evicting others if it does not fit."""

    def unpin(self, block: OperandBlock, step: int) -> None:
        """Drop the pin of ``step``, which is done."""

    def free(self, block: OperandBlock, step: int) -> None:
        """Free a block of the result that is finished and stored."""


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
