"""Prefetcher of a model's blocks: the order in which uses reach the buffer table, in a run and on paper.

The order of uses is learned as they come, so that from the second round on the next ones are known.
While an operation computes, what follows it is pinned already, and on its way: a *prediction*. A
prediction that comes true is one access, made early; when another comes instead, all predictions are
let go and made again. Nothing here depends on time, so the same uses always do the same to the table.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from accelera._native import Order
from accelera.errors import BudgetExceededError
from accelera.memory.pool.backing_store import PoolBlock, Use
from accelera.memory.pool.buffer_table import BufferTable
from accelera.units import format_bytes

MOST_BYTES = 64 << 20
"""More on its way at once makes no disk faster."""


def window_of(capacity_bytes: int, window_bytes: int | None = None) -> int:
    """Return the bytes that may be on their way: as asked, else an eighth of the capacity up to 64 MiB."""
    return min(capacity_bytes // 8, MOST_BYTES) if window_bytes is None else window_bytes


@final
class BlockIds:
    """Ids from 0; a freed one goes to the next block of the same size and role, the smallest first."""

    def __init__(self) -> None:
        self.count = 0
        """How many ids there are."""
        self._spare: dict[tuple[int, str], list[int]] = defaultdict(list)

    def take(self, nbytes: int, role: str) -> int:
        """Return the id for a new block."""
        spare = self._spare[nbytes, role]
        if spare:
            return heapq.heappop(spare)
        self.count += 1
        return self.count - 1

    def give(self, id: int, nbytes: int, role: str) -> None:
        """Take back the id of a dead block."""
        heapq.heappush(self._spare[nbytes, role], id)


MOST_PREDICTIONS = 64

_FIRST, _WRITE = 1, 2
"""Bits of an access in the order: first of its use, contents overwritten; the rest is the id."""


class _Prediction(NamedTuple):
    """An access that is expected."""

    access: int
    block: PoolBlock | None
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
    held: list[tuple[PoolBlock, int]] = field(default_factory=list)
    """Per pin, the block and the step of its access."""
    given: list[Any] = field(default_factory=list)
    """Per use, what the table gave."""


@final
class Prefetcher:
    """Turns uses into accesses, and looks ahead.

    ``window_bytes`` is how much may be on its way beside what operations use; at least one block, if any.
    With 0 nothing is brought before it is used.
    """

    def __init__(self, table: BufferTable[PoolBlock], window_bytes: int = 0) -> None:
        self._table = table
        self.withheld_bytes = 0
        """How much of the capacity is to stay empty for now."""
        self._window_bytes = window_bytes
        self._order = Order()
        self._predictions: deque[_Prediction] = deque()
        self._ahead_bytes = 0
        self._kept_bytes = 0
        self._steps = 0
        self._ids = BlockIds()
        self._alive: dict[int, PoolBlock] = {}
        self._sizes: dict[int, int] = {}

    @property
    def step(self) -> int:
        """The latest step."""
        return max(self._steps - 1, 0)

    def create(self, nbytes: int, role: str, name: str) -> PoolBlock:
        """Return a new block without contents."""
        block = PoolBlock(self._ids.take(nbytes, role), nbytes, role, name)
        self._alive[block.id] = block
        self._sizes[block.id] = nbytes
        return block

    def free(self, block: PoolBlock) -> bool:
        """End a block's life; False, with nothing done, while an operation holds it."""
        if any(prediction.block is block for prediction in self._predictions):
            self.forget_predictions()
        if self._table.pinned(block):
            return False
        self._table.free(block, self.step)
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
            self._table.unpin(block, step, pins.op)

    def forget_predictions(self) -> None:
        """Let go of everything that is expected."""
        for prediction in self._predictions:
            if prediction.block is not None:
                self._table.unpin(prediction.block, prediction.step)
        self._predictions.clear()
        self._ahead_bytes = self._kept_bytes = 0

    def _access(self, pins: Pins, block: PoolBlock, write: int) -> Any:
        access = block.id << 2 | write | (not pins.held)
        prediction = self._predicted(access, block)
        if prediction is None:
            step, given = self._admit(pins, block, write)
        else:
            step, given = prediction.step, prediction.given
        pins.step = step
        pins.held.append((block, step))
        self._order.note(access)
        return given

    def _predicted(self, access: int, block: PoolBlock) -> _Prediction | None:
        """Return the prediction that comes true with an access; forget all if another was expected."""
        if not self._predictions:
            return None
        prediction = self._predictions[0]
        if prediction.access != access or (prediction.block is not None and prediction.block is not block):
            self.forget_predictions()
            return None
        self._predictions.popleft()
        if prediction.block is None:
            self._kept_bytes -= prediction.nbytes
            return None
        self._ahead_bytes -= prediction.nbytes
        return prediction

    def _admit(self, pins: Pins, block: PoolBlock, write: int) -> tuple[int, Any]:
        if pins.step < 0 or pins.step != self.step:
            self._steps += 1
        if self._predictions and not self._fits(self._table.adds(block)):
            self.forget_predictions()
        if self.withheld_bytes and block not in self._table:
            self._make_room(block)
        return self.step, self._table.admit(block, self.step, write=bool(write))

    def _fits(self, nbytes: int) -> bool:
        return self._table.fits(nbytes + self.withheld_bytes)

    def _make_room(self, block: PoolBlock) -> None:
        """Give up blocks so that what is withheld stays empty beside ``block``."""
        lacking = block.nbytes + self.withheld_bytes - self._table.room_bytes
        given = self._table.evict(lacking, self.step) if lacking > 0 else 0
        if given < lacking:
            needed = self._table.capacity_bytes + lacking - given
            raise BudgetExceededError(
                f"[pool] {block.name or 'a block'} of {format_bytes(block.nbytes)} does not fit: of "
                f"{format_bytes(self._table.capacity_bytes)} for blocks, {format_bytes(self.withheld_bytes)} "
                f"are taken by what is held beside them, such as activations; raise the "
                f"budget by {format_bytes(lacking - given)}, or use a smaller batch",
                needed_bytes=needed,
                budget_bytes=self._table.capacity_bytes,
            )

    def _look_ahead(self) -> None:
        """Make predictions until enough is on its way, nothing more is known, or nothing more fits."""
        predictions, order = self._predictions, self._order
        while self._ahead_bytes < self._window_bytes and len(predictions) < MOST_PREDICTIONS:
            access = order.ahead(len(predictions) + 1)
            if access < 0:
                break
            prediction = self._predict(access)
            if prediction is None:
                break
            predictions.append(prediction)
        self._table.save_ahead(self._window_bytes + self._kept_bytes, self.step)

    def _predict(self, access: int) -> _Prediction | None:
        """Pin what is expected; None when there is no room for it."""
        block = self._alive.get(access >> 2)
        here = block is not None and block in self._table
        if block is None or not block.filled or (access & _WRITE and not here):
            nbytes = self._sizes[access >> 2]
            self._kept_bytes += nbytes
            return _Prediction(access, None, -1, nbytes, None)
        if not self._fits(self._table.adds(block) + self._kept_bytes):
            return None
        if self.withheld_bytes and not here:
            self._make_room(block)
        if access & _FIRST:
            self._steps += 1
        given = self._table.admit(block, self.step, write=bool(access & _WRITE))
        nbytes = 0 if here else block.nbytes
        self._ahead_bytes += nbytes
        return _Prediction(access, block, self.step, nbytes, given)
