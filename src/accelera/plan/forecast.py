"""Walk a plan on paper: its misses, bytes, peak, and a timeline of reads, arithmetic and writes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from accelera.memory import Ledger
from accelera.plan.cost import CostModel
from accelera.plan.eviction import Eviction
from accelera.plan.figures import Forecast, Step
from accelera.plan.operand import Block, Operand
from accelera.plan.paper import Numbers, trace_of
from accelera.plan.walk import walk

_BELADY = Eviction()
_REMEMBERED = 4096
"""Steps that are made once and kept for the second walk; more are made again, for they take memory."""


class _PaperBooks:
    """A ledger that also adds up what is read, and when it arrives."""

    def __init__(self, ledger: Ledger, operands: Sequence[Operand], cost: CostModel) -> None:
        self.ledger = ledger
        self.read: Counter[int] = Counter()
        self._numbers = Numbers()
        self._loads_s = self._stolen_s = 0.0
        self._operands = operands
        self._cost = cost

    def wait(self, step: int) -> None:
        """On paper every step is done at once."""

    def admit(self, block: Block, step: int, *, write: bool) -> None:
        resident, _ = self.ledger.admit(self._numbers[block.id], block.held_bytes, write=write)
        if resident or write:
            return
        self.read[block.operand] += block.moved_bytes
        moved = (block.moved_bytes, block.run_bytes, self._operands[block.operand].tier)
        self._loads_s += self._cost.read_s(*moved)
        self._stolen_s += self._cost.stolen_s(*moved)

    def arrivals_s(self) -> tuple[float, float]:
        """Return the seconds of loading asked for since the last call, and what they cost the arithmetic."""
        seconds = self._loads_s, self._stolen_s
        self._loads_s = self._stolen_s = 0.0
        return seconds

    def unpin(self, block: Block, step: int) -> None:
        self.ledger.unpin(self._numbers[block.id])

    def free(self, block: Block, step: int) -> None:
        self.ledger.save(self._numbers[block.id])
        self.ledger.free(self._numbers[block.id])


class _Timeline:
    """When each step is done: reads run ahead by the window, writes follow behind."""

    def __init__(self, window: int, cost: CostModel, tier: str) -> None:
        self._retired: deque[float] = deque([0.0] * window, maxlen=window)
        self._cost = cost
        self._tier = tier
        self._done = self._read_free = self._write_free = 0.0
        self.compute_s = self.stall_s = self.read_s = self.write_s = 0.0
        self.written = 0

    def step(self, step: Step, loads_s: float, stolen_s: float) -> None:
        """Account for one step whose loads take ``loads_s`` and slow the arithmetic by ``stolen_s``."""
        self.read_s += loads_s
        self._read_free = max(self._read_free, self._retired[0]) + loads_s
        begin = max(self._done, self._read_free)
        self.stall_s += begin - self._done
        self._done = begin + step.compute_s + stolen_s
        self.compute_s += step.compute_s
        if step.last:
            self.written += step.write.moved_bytes
            spent = self._cost.write_s(step.write.moved_bytes, step.write.run_bytes, self._tier)
            self.write_s += spent
            self._write_free = max(self._write_free, self._done) + spent
        self._retired.append(max(self._done, self._write_free if step.last else 0.0, self._retired[-1]))

    @property
    def seconds(self) -> float:
        """When the last step and the last write are done."""
        return max(self._done, self._write_free)


def forecast(
    make_steps: Callable[[], Iterable[Step]],
    operands: Sequence[Operand],
    capacity_bytes: int,
    window: int,
    cost: CostModel,
    eviction: Eviction = _BELADY,
    *,
    operation: str = "",
) -> Forecast:
    """Return what running the steps of ``operation`` in ``capacity_bytes`` will move, hold and take.

    Raises BudgetExceededError when the pinned blocks of some step do not fit.
    """
    make_steps = _remembered(make_steps)
    only_order = eviction.needs_only_order
    to_come = trace_of(make_steps(), operands, window, operation=operation, accesses_only=only_order)
    policy = eviction.create(to_come, capacity_bytes)
    del to_come
    ledger = Ledger(capacity_bytes, policy)
    books = _PaperBooks(ledger, operands, cost)
    timeline = _Timeline(window, cost, operands[-1].tier)
    count = 0
    for _, step in walk(make_steps(), window, books):
        timeline.step(step, *books.arrivals_s())
        count += 1
    stats = ledger.stats
    return Forecast(
        peak_pool_bytes=stats.peak_bytes,
        bytes_read={operands[i].name: books.read[i] for i in range(len(operands) - 1)},
        bytes_written=timeline.written,
        hits=stats.hits,
        misses=stats.misses,
        evictions=stats.evictions,
        fetched_bytes=stats.fetched_bytes,
        saved_bytes=stats.saved_bytes,
        steps=count,
        seconds=timeline.seconds,
        compute_s=timeline.compute_s,
        stall_s=timeline.stall_s,
        read_s=timeline.read_s,
        write_s=timeline.write_s,
    )


def _remembered(make_steps: Callable[[], Iterable[Step]]) -> Callable[[], Iterable[Step]]:
    steps = list(islice(make_steps(), _REMEMBERED))
    return make_steps if len(steps) == _REMEMBERED else lambda: steps
