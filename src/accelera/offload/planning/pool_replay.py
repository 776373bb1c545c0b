"""Replay of a dry run's records through a pool without bytes: hits, misses and bytes of each pass."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from accelera.memory._internal import BufferTable, Pins, PoolBlock, Prefetcher, Use, window_of
from accelera.offload.block_layout import row_parts
from accelera.offload.planning.dry_run import DryRun
from accelera.offload.planning.plan import PassForecast
from accelera.offload.planning.recording import (
    Arithmetic,
    Begin,
    Create,
    End,
    Event,
    Free,
    ValueNeeded,
    ValueSaved,
)
from accelera.offload.training.activation_plan import ActivationPlan, ActivationPlans, Fate
from accelera.trace import Occupancy, Trace, TraceLog


@dataclass(frozen=True)
class ReplayResult:
    """Result of replaying the passes in a pool of one size."""

    passes: tuple[PassForecast, ...]
    trace: Trace
    peak_pool_bytes: int
    """Most bytes of blocks that are resident at once."""
    pool_bytes: int
    """Most bytes of blocks that exist at once, resident or not."""


def replay(
    run: DryRun,
    capacity_bytes: int,
    policy: str,
    passes: int,
    plans: ActivationPlans | None = None,
    plan: ActivationPlan | None = None,
) -> ReplayResult:
    """Carry the notes of ``run`` out ``passes`` times, with saved tensors as ``plan`` says.

    Raises BudgetExceededError when an operation's blocks do not fit into ``capacity_bytes``.
    """
    events = run.notes.events
    step: Sequence[Event] = events[run.step.start : run.step.stop]
    if plans is not None and plan is not None:
        step = list(_with_saved_tensors(run, plans, plan))
    pool = _ReplayPool(capacity_bytes, policy, run.block_bytes)
    pool.carry_out(events[run.weights.start : run.weights.stop])
    return pool.forecast(_passes(run, step, passes))


def _passes(run: DryRun, step: Sequence[Event], count: int) -> Iterator[Iterable[Event]]:
    """Go through the events of each pass."""
    events = run.notes.events
    for number in range(count):
        update = run.update if number else run.first_update
        release = run.release if number else range(0)
        yield [
            *events[release.start : release.stop],
            *step,
            *events[update.start : update.stop],
        ]


def _with_saved_tensors(run: DryRun, plans: ActivationPlans, plan: ActivationPlan) -> Iterator[Event]:
    """Yield the events of a step with those of a plan added: offloaded blocks, recomputed operations."""
    assert run.record is not None
    notes, tape = run.notes, run.record.tape
    again = dict(plans.recomputations(plan))
    blocks: dict[int, list[int]] = {}
    present: set[int] = set()
    endings = sorted(
        (int(plans.ends[value]), value) for value in plan.record.saved if plan.fates[value] == Fate.OFFLOAD
    )
    left = deque(endings)
    number = -1
    for index in run.step:
        while left and left[0][0] <= notes.positions[index]:
            _, value = left.popleft()
            yield from map(Free, blocks.pop(value, ()))
        event = notes.events[index]
        if isinstance(event, ValueSaved):
            if plan.fates[event.value] == Fate.OFFLOAD and event.value not in blocks:
                sizes = _sizes(tape.nbytes[event.value], run.block_bytes)
                blocks[event.value] = [number - each for each in range(len(sizes))]
                number -= len(sizes)
                for block, nbytes in zip(blocks[event.value], sizes, strict=True):
                    yield Create(block, nbytes, "activation", "saved", filled=False)
                yield from _uses(blocks[event.value], write=True)
        elif isinstance(event, ValueNeeded):
            if event.value in blocks and event.value not in present:
                present.add(event.value)
                yield from _uses(blocks[event.value], write=False)
            for operation in again.pop(event.value, ()):
                span = tape.operations[operation].span
                yield from _recomputation_uses(notes.events[span[0] : span[1]])
        else:
            yield event
    for value in list(blocks):
        yield from map(Free, blocks.pop(value))


def _sizes(nbytes: int, block_bytes: int) -> list[int]:
    return [part.stop - part.start for part in row_parts((nbytes,), 1, block_bytes)]


def _uses(blocks: Iterable[int], *, write: bool) -> Iterator[Event]:
    for block in blocks:
        yield Begin(((block, not write, write),), "aten.copy_.default")
        yield End()


def _recomputation_uses(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events of a recomputed operation, without the blocks that it made itself."""
    made = {event.block for event in events if isinstance(event, Create)}
    for event in events:
        if isinstance(event, Begin):
            yield Begin(tuple(use for use in event.uses if use[0] not in made), event.op)
        elif isinstance(event, (End, Arithmetic)):
            yield event


@final
class _ReplayPool:
    def __init__(self, capacity_bytes: int, policy: str, block_bytes: int) -> None:
        self._log = TraceLog()
        self._log.begin({"operation": "offload", "policy": policy, "capacity_bytes": capacity_bytes})
        self._table: BufferTable[PoolBlock] = BufferTable(capacity_bytes, policy, None, self._log)
        self._prefetcher = Prefetcher(self._table, window_of(capacity_bytes))
        self._blocks: dict[int, PoolBlock] = {}
        self._pending_free: deque[PoolBlock] = deque()
        self._running: list[Pins] = []
        self._uses = 0
        self._flops: dict[int, float] = defaultdict(float)
        self._touched: dict[int, int] = defaultdict(int)

    def carry_out(self, events: Iterable[Event]) -> None:
        """Replay the events in the pool."""
        for event in events:
            if isinstance(event, Begin):
                self._begin(event)
            elif isinstance(event, End):
                self._prefetcher.end(self._running.pop())
            elif isinstance(event, Arithmetic):
                self._flops[self._prefetcher.step] += event.flops
                self._touched[self._prefetcher.step] += event.touched_bytes
            elif isinstance(event, Create):
                self._reap()
                block = self._prefetcher.create(event.nbytes, event.role, event.name)
                block.filled = event.filled
                self._blocks[event.block] = block
            elif isinstance(event, Free):
                self._pending_free.append(self._blocks.pop(event.block))

    def forecast(self, passes: Iterable[Iterable[Event]]) -> ReplayResult:
        """Carry out passes; return a forecast of each."""
        found = []
        for events in passes:
            before, uses = replace(self._table.stats), self._uses
            self.carry_out(events)
            self._reap()
            after = self._table.stats
            found.append(
                PassForecast(
                    uses=self._uses - uses,
                    hits=after.hits - before.hits,
                    misses=after.misses - before.misses,
                    evictions=after.evictions - before.evictions,
                    bytes_read=after.fetched_bytes - before.fetched_bytes,
                    bytes_written=after.saved_bytes - before.saved_bytes,
                    ending=len(self._log),
                )
            )
        trace = self._trace()
        return ReplayResult(tuple(found), trace, self._table.stats.peak_bytes, Occupancy(trace).peak_bytes)

    def _begin(self, event: Begin) -> None:
        self._reap()
        self._uses += 1
        uses = [Use(self._blocks[block], read, write) for block, read, write in event.uses]
        self._running.append(self._prefetcher.begin(uses, event.op))

    def _reap(self) -> None:
        for _ in range(len(self._pending_free)):
            block = self._pending_free.popleft()
            if not self._prefetcher.free(block):
                self._pending_free.append(block)

    def _trace(self) -> Trace:
        trace = self._log.trace()
        steps = range(trace.step_count)
        flops = np.array([self._flops[step] for step in steps], dtype=np.float64)
        touched = [self._touched[step] for step in steps]
        timed = replace(trace, flops=flops, seconds=np.full(len(steps), np.nan))
        return timed.with_meta(touched_bytes=touched)
