"""The one order in which a plan's accesses reach the pool.

The runner and the forecast both follow this walk, so what is admitted, evicted and freed, and
when, is the same on paper and in the run. At most ``window`` steps are under way; the oldest is
retired (its pins dropped, its finished result freed) before the next one is admitted. A result
block stays pinned from its first step to its last. At the end of a pass all steps are retired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from accelera.plan.figures import Step
from accelera.plan.operand import Block
from accelera.plan.passes import Pass


class Books(Protocol):
    """Ledger that a walk drives: on paper alone, or with the buffer pool in a run."""

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        """Begin a pass; of the one before, which ended with ``step``, only the blocks ``held`` stay.

        Called before the first step, too, with nothing held and -1.
        """

    def wait(self, step: int) -> None:
        """Return when ``step`` is done: computed, and its result stored if it finished one."""

    def admit(self, block: Block, step: int, *, write: bool) -> None:
        """Pin ``block``, making room if need be."""

    def unpin(self, block: Block, step: int) -> None:
        """Drop the pin that ``step``, done now, held."""

    def free(self, block: Block, step: int) -> None:
        """Give up a block whose life is over."""


def walk(passes: Iterable[Pass], window: int, books: Books) -> Iterator[tuple[int, Step]]:
    """Admit each step's blocks and yield its index and itself, pass by pass."""
    held: set[int] = set()
    count = 0
    for each in passes:
        books.begin(each, held, count - 1)
        for index, step in walk_steps(each.steps(), window, books, count):
            count = index + 1
            if step.write.held_bytes:
                (held.discard if step.last else held.add)(step.write.id)
            yield index, step


def walk_steps(
    steps: Iterable[Step], window: int, books: Books, first: int = 0
) -> Iterator[tuple[int, Step]]:
    """Admit the blocks of the steps of one pass, whose indices count from ``first``."""
    under_way: deque[tuple[int, Step]] = deque()
    for index, step in enumerate(steps, first):
        if len(under_way) == window:
            retire(*under_way.popleft(), books)
        for block in step.reads:
            if block.held_bytes:
                books.admit(block, index, write=False)
        if step.write.held_bytes:
            books.admit(step.write, index, write=True)
        under_way.append((index, step))
        yield index, step
    while under_way:
        retire(*under_way.popleft(), books)


def retire(index: int, step: Step, books: Books) -> None:
    """Wait for a step, then drop its pins."""
    books.wait(index)
    for block in step.reads:
        if block.held_bytes:
            books.unpin(block, index)
    if not step.write.held_bytes:
        return
    if step.last:
        books.free(step.write, index)
    elif not step.first:
        books.unpin(step.write, index)
