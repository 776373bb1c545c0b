"""Forecast of a plan: misses, bytes, peak, and a timeline of reads, arithmetic and writes, walked on paper.

Of passes that look alike one is walked, and its figures count as often as there are such passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from accelera.memory import Ledger
from accelera.plan.cost import CostModel
from accelera.plan.dry_run import BufferNumbers, policy_of
from accelera.plan.eviction import Eviction
from accelera.plan.types import Forecast, Operand, OperandBlock, PlanStep
from accelera.plan.walk import Pass, Pattern, Repeat, walk_steps
from accelera.policy import EvictionPolicy, create_policy

_BELADY = Eviction()
_REMEMBERED = 4096
"""Steps that are made once and kept for the second walk; more are made again, for they take memory."""


class _LedgerDriver:
    """A ledger that also adds up what is read, and when it arrives."""

    def __init__(
        self,
        capacity_bytes: int,
        operands: Sequence[Operand],
        window: int,
        cost: CostModel,
        eviction: Eviction,
        operation: str,
    ) -> None:
        self.ledger = Ledger(capacity_bytes, create_policy("fifo"))
        self.read = [0] * len(operands)
        self._eviction, self._operation = eviction, operation
        self._numbers = BufferNumbers()
        self._loads_s = self._stolen_s = 0.0
        self._operands = operands
        self._cost = cost
        self._window = window

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        """Drop what is not held, and know what is to come."""
        for block, number in self._numbers.items():
            if block not in held and number in self.ledger:
                self.ledger.free(number)
        self._numbers.keep(held, again=True)
        self.ledger.renew(self._policy(following))

    def _policy(self, following: Pass) -> EvictionPolicy:
        return policy_of(
            following.steps(),
            self._operands,
            self._window,
            self._eviction,
            self.ledger.capacity_bytes,
            self._operation,
        )

    def wait(self, step: int) -> None:
        """On paper every step is done at once."""

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
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

    def unpin(self, block: OperandBlock, step: int) -> None:
        self.ledger.unpin(self._numbers[block.id])

    def free(self, block: OperandBlock, step: int) -> None:
        number = self._numbers.pop(block.id)
        self.ledger.save(number)
        self.ledger.free(number)


class _PlanTimeline:
    """When each step is done: reads run ahead by the window, writes follow behind."""

    def __init__(self, window: int, cost: CostModel, tier: str) -> None:
        self._retired: deque[float] = deque([0.0] * window, maxlen=window)
        self._cost = cost
        self._tier = tier
        self._done = self._read_free = self._write_free = 0.0
        self.compute_s = self.stall_s = self.read_s = self.write_s = 0.0
        self.written = 0

    def step(self, step: PlanStep, loads_s: float, stolen_s: float) -> None:
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

    def drain(self) -> None:
        """Wait until all is done: a pass ends."""
        end = self.seconds
        self._done = self._read_free = self._write_free = end
        self._retired.extend([end] * len(self._retired))

    @property
    def seconds(self) -> float:
        """When the last step and the last write are done."""
        return max(self._done, self._write_free)


class _Walker:
    """Walks the first part of each kind and counts its figures as often as it comes."""

    def __init__(self, driver: _LedgerDriver, timeline: _PlanTimeline, window: int) -> None:
        self._driver, self._timeline, self._window = driver, timeline, window
        self._held: set[int] = set()
        self._steps = 0
        self.totals: dict[Any, Any] = dict.fromkeys(self._figures(), 0)
        self.totals["passes"] = 0

    def all(self, parts: Iterable[Repeat]) -> None:
        """Walk some parts."""
        for repeat in parts:
            if not repeat.count:
                continue
            before = dict(self.totals)
            part = repeat.part(0)
            if isinstance(part, Pass):
                self._pass(part)
            else:
                self.all(part)
            for name in self.totals:
                self.totals[name] += (repeat.count - 1) * (self.totals[name] - before[name])

    def _pass(self, following: Pass) -> None:
        before = self._figures()
        following = _remembered(following)
        self._driver.begin(following, self._held, self._steps - 1)
        for _, step in walk_steps(following.steps(), self._window, self._driver):
            self._timeline.step(step, *self._driver.arrivals_s())
            self._steps += 1
            if step.write.held_bytes:
                (self._held.discard if step.last else self._held.add)(step.write.id)
        self._timeline.drain()
        self.totals["passes"] += 1
        for name, figure in self._figures().items():
            self.totals[name] += figure - before[name]

    def _figures(self) -> dict[Any, Any]:
        """Return all that adds up from pass to pass."""
        stats, line = self._driver.ledger.stats, self._timeline
        return {
            "bytes_written": line.written,
            "hits": stats.hits,
            "misses": stats.misses,
            "evictions": stats.evictions,
            "fetched_bytes": stats.fetched_bytes,
            "saved_bytes": stats.saved_bytes,
            "steps": self._steps,
            "seconds": line.seconds,
            "compute_s": line.compute_s,
            "stall_s": line.stall_s,
            "read_s": line.read_s,
            "write_s": line.write_s,
            **dict(enumerate(self._driver.read)),
        }


def forecast(
    pattern: Pattern,
    operands: Sequence[Operand],
    capacity_bytes: int,
    window: int,
    cost: CostModel,
    eviction: Eviction = _BELADY,
    *,
    operation: str = "",
) -> Forecast:
    """Return what running the passes of ``operation`` in ``capacity_bytes`` will move, hold and take.

    Raises BudgetExceededError when the pinned blocks of some step do not fit.
    """
    driver = _LedgerDriver(capacity_bytes, operands, window, cost, eviction, operation)
    walker = _Walker(driver, _PlanTimeline(window, cost, operands[-1].tier), window)
    walker.all(pattern.kinds)
    read = {operands[i].name: walker.totals.pop(i) for i in range(len(operands))}
    del read[operands[-1].name]
    return Forecast(peak_pool_bytes=driver.ledger.stats.peak_bytes, bytes_read=read, **walker.totals)


def _remembered(following: Pass) -> Pass:
    steps = list(islice(following.steps(), _REMEMBERED))
    return following if len(steps) == _REMEMBERED else Pass(lambda: iter(steps))
