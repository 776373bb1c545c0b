"""The one order in which the uses of a model reach its books, in a run and on paper alike.

The order of uses is learned as they come, so that from the second round on the next ones are known. While
an operation computes, what it is followed by is pinned already, and on its way: a *guess*. A guess that
comes true is one access, made early; when another comes instead, all guesses are let go and made anew.
Nothing here depends on time, so the same uses always do the same to the books.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from accelera._native import Order
from accelera.errors import BudgetExceededError
from accelera.memory.pool.block import Block, Use
from accelera.memory.pool.books import Books
from accelera.memory.pool.ids import Ids
from accelera.units import format_bytes

MOST_GUESSES = 64

_FIRST, _WRITE = 1, 2
"""Bits of an access in the order: first of its use, contents set anew; the rest is the id."""


class _Guess(NamedTuple):
    """An access that is expected."""

    access: int
    block: Block | None
    """None while it only stands in line: nothing is to be brought for it."""
    step: int
    nbytes: int
    """Bytes that are on their way for it, or that are kept for it to come."""
    given: Any


@dataclass
class Pins:
    """Blocks that one operation holds."""

    op: str
    step: int = -1
    """The step of its latest access."""
    held: list[tuple[Block, int]] = field(default_factory=list)
    """Per pin, the block and the step of its access."""
    given: list[Any] = field(default_factory=list)
    """Per use, what the books gave."""


@final
class Stream:
    """Turns uses into accesses, and looks ahead.

    ``window_bytes`` is how much may be on its way beside what operations use; at least one block, if any.
    With 0 nothing is brought before it is used.
    """

    def __init__(self, books: Books[Block], window_bytes: int = 0) -> None:
        self.books = books
        self.withheld_bytes = 0
        """How much of the capacity is to stay empty for now."""
        self._window_bytes = window_bytes
        self._order = Order()
        self._guesses: deque[_Guess] = deque()
        self._ahead_bytes = 0
        self._kept_bytes = 0
        self._steps = 0
        self._ids = Ids()
        self._alive: dict[int, Block] = {}
        self._sizes: dict[int, int] = {}

    @property
    def step(self) -> int:
        """The latest step."""
        return max(self._steps - 1, 0)

    def create(self, nbytes: int, role: str, name: str) -> Block:
        """Return a new block without contents."""
        block = Block(self._ids.take(nbytes, role), nbytes, role, name)
        self._alive[block.id] = block
        self._sizes[block.id] = nbytes
        return block

    def free(self, block: Block) -> bool:
        """End a block's life; False, with nothing done, while an operation holds it."""
        if any(guess.block is block for guess in self._guesses):
            self.forget_guesses()
        if self.books.pinned(block):
            return False
        self.books.free(block, self.step)
        if self._alive.pop(block.id, None) is block:
            self._ids.give(block.id, block.nbytes, block.role)
        return True

    def begin(self, uses: Sequence[Use], op: str) -> Pins:
        """Pin what an operation uses, then what is expected after it.

        Raises BudgetExceededError, with nothing held, when all of it together does not fit.
        """
        pins = Pins(op)
        try:
            for block, read, write in uses:
                reads = read and block.filled
                if reads:
                    pins.given.append(self._access(pins, block, 0))
                if write or not reads:
                    given = self._access(pins, block, _WRITE)
                    block.filled = True
                    if not reads:
                        pins.given.append(given)
        except BaseException:
            self.end(pins)
            raise
        if self._window_bytes:
            self._look_ahead()
        return pins

    def end(self, pins: Pins) -> None:
        """Let go of what ``begin`` pinned."""
        for block, step in pins.held:
            self.books.unpin(block, step, pins.op)

    def forget_guesses(self) -> None:
        """Let go of everything that is expected."""
        for guess in self._guesses:
            if guess.block is not None:
                self.books.unpin(guess.block, guess.step)
        self._guesses.clear()
        self._ahead_bytes = self._kept_bytes = 0

    def _access(self, pins: Pins, block: Block, write: int) -> Any:
        access = block.id << 2 | write | (not pins.held)
        guess = self._guessed(access, block)
        if guess is None:
            step, given = self._admit(pins, block, write)
        else:
            step, given = guess.step, guess.given
        pins.step = step
        pins.held.append((block, step))
        self._order.note(access)
        return given

    def _guessed(self, access: int, block: Block) -> _Guess | None:
        """Return the guess that comes true with an access; forget all if another was expected."""
        if not self._guesses:
            return None
        guess = self._guesses[0]
        if guess.access != access or (guess.block is not None and guess.block is not block):
            self.forget_guesses()
            return None
        self._guesses.popleft()
        if guess.block is None:
            self._kept_bytes -= guess.nbytes
            return None
        self._ahead_bytes -= guess.nbytes
        return guess

    def _admit(self, pins: Pins, block: Block, write: int) -> tuple[int, Any]:
        if pins.step < 0 or pins.step != self.step:
            self._steps += 1
        if self._guesses and not self._fits(self.books.adds(block)):
            self.forget_guesses()
        if self.withheld_bytes and block not in self.books:
            self._make_room(block)
        return self.step, self.books.admit(block, self.step, write=bool(write))

    def _fits(self, nbytes: int) -> bool:
        return self.books.fits(nbytes + self.withheld_bytes)

    def _make_room(self, block: Block) -> None:
        """Give up blocks so that what is withheld stays empty beside ``block``."""
        lacking = block.nbytes + self.withheld_bytes - self.books.room_bytes
        given = self.books.evict(lacking, self.step) if lacking > 0 else 0
        if given < lacking:
            needed = self.books.capacity_bytes + lacking - given
            raise BudgetExceededError(
                f"[pool] {block.name or 'a block'} of {format_bytes(block.nbytes)} does not fit: of "
                f"{format_bytes(self.books.capacity_bytes)} for blocks, {format_bytes(self.withheld_bytes)} "
                f"are taken by what is held beside them, such as activations; raise the "
                f"budget by {format_bytes(lacking - given)}, or use a smaller batch",
                needed_bytes=needed,
                budget_bytes=self.books.capacity_bytes,
            )

    def _look_ahead(self) -> None:
        """Make guesses until enough is on its way, nothing more is known, or nothing more fits."""
        guesses, order = self._guesses, self._order
        while self._ahead_bytes < self._window_bytes and len(guesses) < MOST_GUESSES:
            access = order.ahead(len(guesses) + 1)
            if access < 0:
                break
            guess = self._guess(access)
            if guess is None:
                break
            guesses.append(guess)
        self.books.save_ahead(self._window_bytes + self._kept_bytes, self.step)

    def _guess(self, access: int) -> _Guess | None:
        """Pin what is expected; None when there is no room for it."""
        block = self._alive.get(access >> 2)
        here = block is not None and block in self.books
        if block is None or not block.filled or (access & _WRITE and not here):
            nbytes = self._sizes[access >> 2]
            self._kept_bytes += nbytes
            return _Guess(access, None, -1, nbytes, None)
        if not self._fits(self.books.adds(block) + self._kept_bytes):
            return None
        if self.withheld_bytes and not here:
            self._make_room(block)
        if access & _FIRST:
            self._steps += 1
        given = self.books.admit(block, self.step, write=bool(access & _WRITE))
        nbytes = 0 if here else block.nbytes
        self._ahead_bytes += nbytes
        return _Guess(access, block, self.step, nbytes, given)
