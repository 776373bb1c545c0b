"""Prefetcher of a model's blocks: the order in which uses reach the buffer table, in a run and in a forecast.

The order of uses is learned as they come, so that from the second iteration on the next ones are known.
While an operation computes, the blocks expected next are already pinned and loading: a *prediction*. A
prediction that comes true is one access, made early. When another access comes instead, all predictions
are dropped and made again. Nothing here depends on time: the same uses always have the same effect.
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
"""Most bytes in flight by default: more makes no disk faster."""


def window_of(capacity_bytes: int, window_bytes: int | None = None) -> int:
    """Return the bytes that may be in flight: as asked, else an eighth of the capacity up to 64 MiB."""
    return min(capacity_bytes // 8, MOST_BYTES) if window_bytes is None else window_bytes


@final
class BlockIds:
    """Ids from 0; a new block takes the smallest freed id of its size and role, if there is one."""

    def __init__(self) -> None:
        self.count = 0
        """How many ids there are."""
        self._free_ids: dict[tuple[int, str], list[int]] = defaultdict(list)

    def take(self, nbytes: int, role: str) -> int:
        """Return the id for a new block."""
        free_ids = self._free_ids[nbytes, role]
        if free_ids:
            return heapq.heappop(free_ids)
        self.count += 1
        return self.count - 1

    def release(self, id: int, nbytes: int, role: str) -> None:
        """Let the id of a dead block be used again."""
        heapq.heappush(self._free_ids[nbytes, role], id)


MOST_PREDICTIONS = 64

_FIRST, _WRITE = 1, 2
"""Bits of an access in the order: first of its use, contents overwritten; the rest is the id."""


class _Prediction(NamedTuple):
    """An access that is expected."""

    access: int
    block: PoolBlock | None
    """None where nothing can be loaded yet: the prediction only keeps room."""
    step: int
    nbytes: int
    """Bytes in flight for it, or, without a block, reserved for it."""
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
    """Per use, what ``BufferTable.admit`` returned."""


@final
class Prefetcher:
    """Turns uses into accesses, and prefetches.

    ``window_bytes`` may be in flight for predictions; a larger block is prefetched alone. With 0 nothing is
    prefetched.
    """

    def __init__(self, table: BufferTable[PoolBlock], window_bytes: int = 0) -> None:
        self._table = table
        self.withheld_bytes = 0
        """Bytes of the capacity that are to stay free for now."""
        self._window_bytes = window_bytes
        self._order = Order()
        self._predictions: deque[_Prediction] = deque()
        self._in_flight_bytes = 0
        self._reserved_bytes = 0
        self._steps = 0
        self._ids = BlockIds()
        self._blocks: dict[int, PoolBlock] = {}
        self._sizes: dict[int, int] = {}

    @property
    def step(self) -> int:
        """The latest step."""
        return max(self._steps - 1, 0)

    def create(self, nbytes: int, role: str, name: str) -> PoolBlock:
        """Return a new block without contents."""
        block = PoolBlock(self._ids.take(nbytes, role), nbytes, role, name)
        self._blocks[block.id] = block
        self._sizes[block.id] = nbytes
        return block

    def free(self, block: PoolBlock) -> bool:
        """Free ``block`` and return True; False, with nothing done, while an operation has it pinned."""
        if any(prediction.block is block for prediction in self._predictions):
            self.forget_predictions()
        if self._table.pinned(block):
            return False
        self._table.free(block, self.step)
        if self._blocks.pop(block.id, None) is block:
            self._ids.release(block.id, block.nbytes, block.role)
        return True

    def begin(self, uses: Sequence[Use], op: str) -> Pins:
        """Pin the blocks an operation uses, then those expected after it.

        Raises BudgetExceededError, with nothing pinned, when the operation's blocks do not fit together.
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
        """Drop the pins of ``begin``."""
        for block, step in pins.held:
            self._table.unpin(block, step, pins.op)

    def forget_predictions(self) -> None:
        """Drop all predictions and their pins."""
        for prediction in self._predictions:
            if prediction.block is not None:
                self._table.unpin(prediction.block, prediction.step)
        self._predictions.clear()
        self._in_flight_bytes = self._reserved_bytes = 0

    def _access(self, pins: Pins, block: PoolBlock, write: int) -> Any:
        access = block.id << 2 | write | (not pins.held)
        prediction = self._match_prediction(access, block)
        if prediction is None:
            step, given = self._admit(pins, block, write)
        else:
            step, given = prediction.step, prediction.given
        pins.step = step
        pins.held.append((block, step))
        self._order.note(access)
        return given

    def _match_prediction(self, access: int, block: PoolBlock) -> _Prediction | None:
        """Return the prediction of this access; drop all predictions if another access was expected."""
        if not self._predictions:
            return None
        prediction = self._predictions[0]
        if prediction.access != access or (prediction.block is not None and prediction.block is not block):
            self.forget_predictions()
            return None
        self._predictions.popleft()
        if prediction.block is None:
            self._reserved_bytes -= prediction.nbytes
            return None
        self._in_flight_bytes -= prediction.nbytes
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
        """Evict blocks so that ``withheld_bytes`` stay free beside ``block``."""
        missing_bytes = block.nbytes + self.withheld_bytes - self._table.room_bytes
        given = self._table.evict(missing_bytes, self.step) if missing_bytes > 0 else 0
        if given < missing_bytes:
            needed = self._table.capacity_bytes + missing_bytes - given
            raise BudgetExceededError(
                f"[pool] {block.name or 'a block'} of {format_bytes(block.nbytes)} does not fit: of "
                f"{format_bytes(self._table.capacity_bytes)} for blocks, {format_bytes(self.withheld_bytes)} "
                f"are taken by what is held beside them, such as activations; raise the "
                f"budget by {format_bytes(missing_bytes - given)}, or use a smaller batch",
                needed_bytes=needed,
                budget_bytes=self._table.capacity_bytes,
            )

    def _look_ahead(self) -> None:
        """Predict until the window is full, no further access is known, or nothing more fits."""
        predictions, order = self._predictions, self._order
        while self._in_flight_bytes < self._window_bytes and len(predictions) < MOST_PREDICTIONS:
            access = order.ahead(len(predictions) + 1)
            if access < 0:
                break
            prediction = self._predict(access)
            if prediction is None:
                break
            predictions.append(prediction)
        self._table.save_ahead(self._window_bytes + self._reserved_bytes, self.step)

    def _predict(self, access: int) -> _Prediction | None:
        """Pin the block of an expected access; None when there is no room for it."""
        block = self._blocks.get(access >> 2)
        here = block is not None and block in self._table
        if block is None or not block.filled or (access & _WRITE and not here):
            nbytes = self._sizes[access >> 2]
            self._reserved_bytes += nbytes
            return _Prediction(access, None, -1, nbytes, None)
        if not self._fits(self._table.adds(block) + self._reserved_bytes):
            return None
        if self.withheld_bytes and not here:
            self._make_room(block)
        if access & _FIRST:
            self._steps += 1
        given = self._table.admit(block, self.step, write=bool(access & _WRITE))
        nbytes = 0 if here else block.nbytes
        self._in_flight_bytes += nbytes
        return _Prediction(access, block, self.step, nbytes, given)
