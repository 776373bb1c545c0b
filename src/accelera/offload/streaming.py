"""The one order in which an offloaded model's uses reach the pool, in a run and on paper alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

from accelera.errors import BudgetExceededError
from accelera.offload.block import Block, Use


class Books(Protocol):
    """What a stream drives: the ledger on paper, the residence in a run."""

    def admit(self, block: Block, step: int, *, write: bool) -> Any:
        """Pin ``block``, making room if need be; ``write``: its contents are set anew."""

    def unpin(self, block: Block, step: int, op: str = "") -> None:
        """Drop one pin of ``block``."""

    def free(self, block: Block, step: int) -> None:
        """Give up a block whose life is over."""


class Pins(NamedTuple):
    """What one operation holds."""

    step: int
    op: str
    held: list[Block]
    """One entry per pin."""
    given: list[Any]
    """What the books gave, one entry per use."""


@final
class Stream:
    """Turns uses into accesses, each use one step."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._steps = 0

    @property
    def step(self) -> int:
        """The latest step."""
        return max(self._steps - 1, 0)

    def begin(self, uses: Sequence[Use], op: str) -> Pins:
        """Pin what an operation uses.

        Raises BudgetExceededError, with nothing held, when all of it together does not fit.
        """
        pins = Pins(self._steps, op, [], [])
        self._steps += 1
        try:
            for block, read, write in uses:
                reads = read and block.filled
                if reads:
                    pins.given.append(self._admit(pins, block, write=False))
                if write or not reads:
                    given = self._admit(pins, block, write=True)
                    if not reads:
                        pins.given.append(given)
                block.filled = True
        except BudgetExceededError:
            self.end(pins)
            raise
        return pins

    def end(self, pins: Pins) -> None:
        """Let go of what ``begin`` pinned."""
        for block in pins.held:
            self._books.unpin(block, pins.step, pins.op)

    def _admit(self, pins: Pins, block: Block, *, write: bool) -> Any:
        given = self._books.admit(block, pins.step, write=write)
        pins.held.append(block)
        return given

    def free(self, block: Block) -> None:
        """End a block's life."""
        self._books.free(block, self.step)
