"""The pattern of a plan: passes over parts of the problem, of which few are of different kinds.

A plan of very many steps runs in *passes*. A pass is some hundreds or thousands of steps that share what the
pool holds; at its end everything leaves the pool but blocks of the result that are not finished. So a pass
knows nothing of the others, its books are made anew, and passes that look alike do alike: the figures of
a billion steps are those of a few passes, each times how often it comes. What several passes need is read
by each of them, so passes are long beside what the pool holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from accelera.plan.figures import PlanStep


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
