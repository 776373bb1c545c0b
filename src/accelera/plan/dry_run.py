"""Dry run of a plan: its trace and its forecast, without running it.

The forecast counts misses, bytes and peak, and keeps a timeline of reads, arithmetic and writes. Of equal
passes one is walked, and its figures are multiplied by their number.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.memory._internal import Ledger
from accelera.plan.cost import CostModel
from accelera.plan.limits import Eviction
from accelera.plan.types import Forecast, Operand, OperandBlock, PlanStep
from accelera.plan.walk import Pass, Pattern, Repeat, walk, walk_steps
from accelera.policy import EvictionPolicy, create_policy
from accelera.trace import Kind, Trace


class BufferNumbers(dict[int, int]):
    """Gives each block the number of its first access, from 0, as traces number buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.following = 0
        """The next number."""

    def __missing__(self, block: int) -> int:
        self[block] = self.following
        self.following += 1
        return self[block]

    def keep(self, held: Collection[int], *, again: bool) -> None:
        """Forget all blocks but ``held`` at the end of a pass; with ``again`` reuse their numbers."""
        kept = {block: number for block, number in self.items() if block in held}
        self.clear()
        self.update(kept)
        if again:
            self.following = max(kept.values(), default=-1) + 1


class _TraceWriter:
    """``PoolDriver`` that records the events of a walk in columns, as the pool's recorder does in a run."""

    def __init__(self, operands: Sequence[Operand], *, described: bool) -> None:
        self._operands = operands
        self._described = described
        self._numbers = BufferNumbers()
        self.buffer, self.kind, self.step = array("i"), array("B"), array("i")
        self.size_bytes = array("q")
        self.dtypes: list[str] = []
        self.names: list[str] = []
        self._dtype_of = [str(operand.held_dtype) for operand in operands]

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        """Free the blocks of the previous pass, except those ``held``."""
        for block, number in self._numbers.items():
            if block not in held:
                self._note(number, Kind.FREE, step)
        self._numbers.keep(held, again=False)

    def wait(self, step: int) -> None:
        """Return at once: in a forecast every step is done when it is admitted."""

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
        number = self._numbers[block.id]
        if number == len(self.size_bytes):
            self.size_bytes.append(block.held_bytes)
            self.dtypes.append(self._dtype_of[block.operand])
            self.names.append(block.name(self._operands) if self._described else "")
        self._note(number, Kind.WRITE if write else Kind.READ, step)

    def unpin(self, block: OperandBlock, step: int) -> None:
        self._note(self._numbers[block.id], Kind.RELEASE, step)

    def free(self, block: OperandBlock, step: int) -> None:
        number = self._numbers.pop(block.id)
        self._note(number, Kind.SAVE, step)
        self._note(number, Kind.FREE, step)

    def _note(self, number: int, kind: int, step: int) -> None:
        self.buffer.append(number)
        self.kind.append(kind)
        self.step.append(step)


def trace_of(
    steps: Iterable[PlanStep],
    operands: Sequence[Operand],
    window: int,
    *,
    operation: str = "",
    accesses_only: bool = False,
) -> Trace:
    """Return the trace of running ``steps`` as one pass, ``window`` of them under way at once.

    ``accesses_only`` keeps the order of the accesses and nothing else: all are reads of one step.
    """
    if accesses_only:
        return _order_of(steps, operands)
    one = (Pass(lambda: iter(steps)),)
    return trace_of_passes(one, operands, window, operation=operation)


def trace_of_passes(
    passes: Iterable[Pass],
    operands: Sequence[Operand],
    window: int,
    *,
    operation: str = "",
    described: bool = False,
) -> Trace:
    """Return the trace of running ``passes``, ``window`` steps under way at once.

    What a pass reads are buffers of its own, freed when it ends. ``described`` gives each buffer the name of
    its block, which takes time and memory.
    """
    writer = _TraceWriter(operands, described=described)
    seconds, flops = array("d"), array("d")
    for _, step in walk(passes, window, writer):
        seconds.append(step.compute_s)
        flops.append(step.flops)
    count, buffers = len(seconds), len(writer.size_bytes)
    return Trace(
        buffer=_column(writer.buffer, np.int32),
        kind=_column(writer.kind, np.uint8),
        step=_column(writer.step, np.int32),
        stride=np.broadcast_to(np.int64(1), len(writer.buffer)),
        size_bytes=_column(writer.size_bytes, np.int64),
        names=tuple(writer.names),
        roles=("tile",) * buffers,
        dtypes=tuple(writer.dtypes),
        ops=(operation,) * count,
        flops=_column(flops, np.float64),
        seconds=_column(seconds, np.float64),
        model_type=operation,
    )


def policy_of(
    steps: Iterable[PlanStep],
    operands: Sequence[Operand],
    window: int,
    eviction: Eviction,
    capacity_bytes: int,
    operation: str = "",
) -> EvictionPolicy:
    """Return a fresh policy that knows the accesses of ``steps``, which are one pass."""
    only_order = eviction.needs_only_order
    accesses = trace_of(steps, operands, window, operation=operation, accesses_only=only_order)
    return eviction.create(accesses, capacity_bytes)


def _order_of(steps: Iterable[PlanStep], operands: Sequence[Operand]) -> Trace:
    """Return the order of the accesses of one pass, four bytes for each.

    The order does not depend on the steps in flight, so no walk through the pool is necessary.
    """
    dtype_of = [str(operand.held_dtype) for operand in operands]
    numbers: dict[int, int] = {}
    buffer, size_bytes, dtypes = array("i"), array("q"), list[str]()
    for step in steps:
        for block in (*step.reads, step.write):
            if not block.held_bytes:
                continue
            number = numbers.setdefault(block.id, len(numbers))
            if number == len(size_bytes):
                size_bytes.append(block.held_bytes)
                dtypes.append(dtype_of[block.operand])
            buffer.append(number)
    count, buffers = len(buffer), len(size_bytes)
    return Trace(
        buffer=_column(buffer, np.int32),
        kind=np.broadcast_to(np.uint8(Kind.READ), count),
        step=np.broadcast_to(np.int32(0), count),
        stride=np.broadcast_to(np.int64(1), count),
        size_bytes=_column(size_bytes, np.int64),
        names=("",) * buffers,
        roles=("tile",) * buffers,
        dtypes=tuple(dtypes),
        ops=("",),
        flops=np.zeros(1),
        seconds=np.full(1, np.nan),
    )


def _column(values: array[int] | array[float], dtype: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(values, dtype) if values else np.empty(0, dtype)


_BELADY = Eviction()
_CACHED_STEPS = 8192
"""Most steps of a pass that are kept for its second walk; those of longer passes are generated twice."""


class _LedgerDriver:
    """``PoolDriver`` of a forecast: a ledger that also adds up the bytes and seconds of reads."""

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
        """Free the blocks of the previous pass, except those ``held``, and set the policy of this pass."""
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
        """Return at once: in a forecast every step is done when it is admitted."""

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
        resident, _ = self.ledger.admit(self._numbers[block.id], block.held_bytes, write=write)
        if resident or write:
            return
        self.read[block.operand] += block.moved_bytes
        moved = (block.moved_bytes, block.run_bytes, self._operands[block.operand].tier)
        self._loads_s += self._cost.read_s(*moved)
        self._stolen_s += self._cost.stolen_s(*moved)

    def arrivals_s(self) -> tuple[float, float]:
        """Return the seconds of loads since the last call, and of arithmetic lost to them."""
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
    """Timeline of a plan: reads run ahead by the window, writes follow behind."""

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
        """Wait for all reads, steps and writes, as at the end of a pass."""
        end = self.seconds
        self._done = self._read_free = self._write_free = end
        self._retired.extend([end] * len(self._retired))

    @property
    def seconds(self) -> float:
        """Time at which the last step and the last write are done."""
        return max(self._done, self._write_free)


class _Walker:
    """Walks the first part of each kind and multiplies its figures by its count."""

    def __init__(self, driver: _LedgerDriver, timeline: _PlanTimeline, window: int) -> None:
        self._driver, self._timeline, self._window = driver, timeline, window
        self._held: set[int] = set()
        self._steps = 0
        self.totals: dict[Any, Any] = dict.fromkeys(self._figures(), 0)
        self.totals["passes"] = 0

    def walk_all(self, parts: Iterable[Repeat]) -> None:
        """Walk ``parts`` and add up their figures."""
        for repeat in parts:
            if not repeat.count:
                continue
            before = dict(self.totals)
            part = repeat.part(0)
            if isinstance(part, Pass):
                self._pass(part)
            else:
                self.walk_all(part)
            for name in self.totals:
                self.totals[name] += (repeat.count - 1) * (self.totals[name] - before[name])

    def _pass(self, following: Pass) -> None:
        before = self._figures()
        following = _with_cached_steps(following)
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
        """Return the figures that add up from pass to pass."""
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
    """Return the bytes, peak and seconds of running the passes of ``operation`` in ``capacity_bytes``.

    Raises BudgetExceededError when the pinned blocks of some step do not fit.
    """
    driver = _LedgerDriver(capacity_bytes, operands, window, cost, eviction, operation)
    walker = _Walker(driver, _PlanTimeline(window, cost, operands[-1].tier), window)
    walker.walk_all(pattern.kinds)
    read = {operands[i].name: walker.totals.pop(i) for i in range(len(operands))}
    del read[operands[-1].name]
    return Forecast(peak_pool_bytes=driver.ledger.stats.peak_bytes, bytes_read=read, **walker.totals)


def _with_cached_steps(following: Pass) -> Pass:
    steps = list(islice(following.steps(), _CACHED_STEPS))
    return following if len(steps) == _CACHED_STEPS else Pass(lambda: iter(steps))
