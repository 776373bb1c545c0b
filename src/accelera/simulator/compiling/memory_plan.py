"""Memory plan of a trace: values to keep, offload, recompute or drop early, and the trace that results.

The peak of the replay is lowered step by step: of the values that are held there without being needed,
the one that costs the fewest seconds per byte leaves until its next use. It is dropped when no step reads
it again, computed again when its operands still lie there, and moved out and back otherwise. Nothing is
estimated about memory: the curve that decides is the curve of the replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.memory import Hierarchy
from accelera.simulator.compiling.dataflow import OPTIMIZER, Dataflow, OpKind, TracedValue, base_name
from accelera.trace import Kind, Occupancy, Trace

LONGEST_CHAIN = 16
"""Steps that may be run again to bring one value back."""
HIDDEN = 0.1
"""Share of a transfer's time that counts while the link has idle time to hide it."""
SMALLEST_SHARE = 1e-5
"""Values below this share of the peak stay: moving them costs more than they take."""

_RANDOM = ("dropout", "rand", "bernoulli", "uniform", "normal", "exponential", "multinomial")


@dataclass(frozen=True)
class Gap:
    """The time between two uses of a value."""

    value: int
    start: int
    """First event after the earlier use's step; 0 before the first use."""
    end: int
    """First event of the later use's step, or the one that ends the value."""
    next_step: int
    """Step of the later use; -1 when no step reads it again."""
    last_step: int
    """Step of the earlier use; -1 before the first."""
    repeatable: bool = True
    """Whether the value may be computed again at its end."""


@dataclass(frozen=True)
class GapChoice:
    """What happens to a value in one gap."""

    gap: Gap
    how: str
    """``offload``, ``recompute`` or ``drop``."""
    cost_s: float
    """Seconds that are expected to be added."""
    steps: tuple[int, ...] = ()
    """Steps run again, in order."""


@dataclass
class GapPlanner:
    """Lowers the peak of one trace; budgets must come in falling order, as each extends the last plan."""

    trace: Trace
    flow: Dataflow
    held: Occupancy
    seconds: NDArray[np.float64]
    """Seconds per step, shape (steps,)."""
    hierarchy: Hierarchy
    recompute: bool = True
    choices: list[GapChoice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.curve = self.held.live_bytes.copy()
        self._step_starts, self._step_ends = _step_bounds(self.trace)
        least = SMALLEST_SHARE * self.held.peak_bytes
        self._gaps = [gap for gap in self._all_gaps() if self._value(gap).nbytes > least]
        self._gap_starts = np.array([gap.start for gap in self._gaps], dtype=np.int64)
        self._gap_ends = np.array([gap.end for gap in self._gaps], dtype=np.int64)
        self._bytes = np.array([self._value(gap).nbytes for gap in self._gaps], dtype=np.int64)
        self._gap_indices: dict[int, list[int]] = defaultdict(list)
        for index, gap in enumerate(self._gaps):
            self._gap_indices[gap.value].append(index)
        self._written = {value.buffer for value in self.flow.values if value.producer >= 0}
        self._elapsed = np.concatenate([[0.0], np.cumsum(self.seconds)])
        self._absences: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._link_s = 0.0

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once, all choices counted."""
        return int(self.curve.max(initial=0))

    def lower_to(self, budget_bytes: int) -> bool:
        """Choose until the peak is at most ``budget_bytes``; return whether that was possible."""
        while self.peak_bytes > budget_bytes:
            peak = int(self.curve.argmax())
            for index, choice in self._candidates(peak, budget_bytes):
                if self.curve[peak] > budget_bytes and self._is_still_valid(choice):
                    self._apply(index, choice)
            if self.curve[peak] > budget_bytes:
                return False
        return True

    def _candidates(self, peak: int, budget_bytes: int) -> list[tuple[int, GapChoice]]:
        """Return the choices that lower event ``peak``, the fewest seconds per byte first."""
        around = np.flatnonzero((self._gap_starts <= peak) & (peak < self._gap_ends)).tolist()
        found = [(index, self._choice(self._gaps[index], budget_bytes)) for index in around]
        sizes = self._bytes
        return sorted(found, key=lambda each: (each[1].cost_s / sizes[each[0]], -sizes[each[0]], each[0]))

    def _is_still_valid(self, choice: GapChoice) -> bool:
        """Return whether later choices have neither removed a value this one needs nor kept its value."""
        gap = choice.gap
        if not any(
            self._gaps[index] is gap and self._gap_ends[index] > 0 for index in self._gap_indices[gap.value]
        ):
            return False
        return choice.how != "recompute" or self._recompute_chain(gap.value, gap.end) == choice.steps

    def _all_gaps(self) -> Iterator[Gap]:
        for index, value in enumerate(self.flow.values):
            uses = [] if value.producer < 0 else [value.producer]
            uses += [step for step in value.consumers if step not in uses[-1:]]
            if value.producer < 0 and uses:
                yield Gap(index, 0, int(self._step_starts[uses[0]]), uses[0], -1)
            for earlier, later in pairwise(uses):
                yield Gap(index, int(self._step_ends[earlier]), int(self._step_starts[later]), later, earlier)
            if uses:
                yield Gap(index, int(self._step_ends[uses[-1]]), self._end_of(value), -1, uses[-1])

    def _end_of(self, value: TracedValue) -> int:
        """Return the event at which the value's memory is freed or overwritten."""
        overwritten = not value.stays and self.trace.kind[value.dies] != Kind.FREE
        return int(self._step_starts[self.trace.step[value.dies]]) if overwritten else value.dies

    def _value(self, gap: Gap) -> TracedValue:
        return self.flow.values[gap.value]

    def _choice(self, gap: Gap, budget_bytes: int) -> GapChoice:
        value = self._value(gap)
        if gap.next_step < 0 and not value.stays:
            return GapChoice(gap, "drop", 0.0)
        offload = GapChoice(gap, "offload", self._transfer_s(gap))
        if not (self.recompute and gap.repeatable and gap.next_step >= 0 and gap.last_step >= 0):
            return offload
        steps = self._recompute_chain(gap.value, gap.end)
        if steps is None or not self._chain_fits(gap, steps, budget_bytes):
            return offload
        cost_s = float(self.seconds[list(steps)].sum())
        return GapChoice(gap, "recompute", cost_s, steps) if cost_s < offload.cost_s else offload

    def _transfer_s(self, gap: Gap) -> float:
        """Return the seconds that moving a value out and back is expected to add."""
        busy_s = self._link_busy_s(gap)
        earlier, later = max(gap.last_step, 0), gap.next_step if gap.next_step >= 0 else self.trace.step_count
        between_s = self._elapsed[later] - self._elapsed[earlier]
        hidden = busy_s <= between_s and self._link_s + busy_s < self._elapsed[-1]
        return busy_s * (HIDDEN if hidden else 1.0)

    def _link_busy_s(self, gap: Gap) -> float:
        value, link = self._value(gap), self.hierarchy.tiers[1]
        used = gap.last_step >= 0
        there = link.away_s_per_byte if used and value.buffer in self._written else 0.0
        back = link.towards_s_per_byte if used and gap.next_step >= 0 else 0.0
        return value.nbytes * (there + back)

    def _recompute_chain(self, value: int, event: int) -> tuple[int, ...] | None:
        """Return the steps that recompute ``value`` from values present at ``event``; None if none can."""
        steps: set[int] = set()
        todo = [value]
        while todo:
            producer = self.flow.values[todo.pop()].producer
            if producer in steps:
                continue
            if producer < 0 or not self._is_repeatable(producer) or len(steps) == LONGEST_CHAIN:
                return None
            steps.add(producer)
            todo.extend(
                each for each in self.flow.operations[producer].reads if not self._is_present(each, event)
            )
        return tuple(sorted(steps))

    def _is_repeatable(self, step: int) -> bool:
        operation = self.flow.operations[step]
        values = self.flow.values
        in_place = {values[v].buffer for v in operation.reads} & {values[v].buffer for v in operation.writes}
        named = base_name(operation.op)
        unsure = operation.kind is OpKind.OPAQUE or any(word in named for word in _RANDOM)
        return not in_place and not unsure and operation.phase != OPTIMIZER

    def _is_present(self, value: int, event: int) -> bool:
        out = any(start <= event <= end for start, end in self._absences.get(value, ()))
        return event < self.flow.values[value].dies and not out

    def _chain_fits(self, gap: Gap, steps: Sequence[int], budget_bytes: int) -> bool:
        made = sum(self.flow.operations[step].written_bytes for step in steps)
        return int(self.curve[gap.end - 1]) + made <= budget_bytes

    def _apply(self, index: int, choice: GapChoice) -> None:
        gap = choice.gap
        self.curve[gap.start : gap.end] -= self._bytes[index]
        self._absences[gap.value].append((gap.start, gap.end))
        if choice.how == "offload":
            self._link_s += self._link_busy_s(gap)
        self._keep_operands(choice)
        self._gap_ends[index] = -1
        self.choices.append(choice)

    def _keep_operands(self, choice: GapChoice) -> None:
        """Keep the values that a recomputation reads in memory until then."""
        operations = [self.flow.operations[step] for step in choice.steps]
        made = {value for each in operations for value in each.writes}
        for value in {value for each in operations for value in each.reads} - made:
            for index in self._gap_indices[value]:
                if self._gap_starts[index] <= choice.gap.end < self._gap_ends[index]:
                    self._split(index, choice.gap)

    def _split(self, index: int, use: Gap) -> None:
        """Replace a gap by its parts before and after the step that ends ``use``."""
        gap = self._gaps[index]
        self._gap_ends[index] = -1
        parts = [replace(gap, end=use.end, next_step=use.next_step, repeatable=False)]
        after = int(self._step_ends[use.next_step])
        if after < gap.end:
            parts.append(replace(gap, start=after, last_step=use.next_step))
        for part in parts:
            self._gap_indices[gap.value].append(len(self._gaps))
            self._gaps.append(part)
        self._gap_starts = np.append(self._gap_starts, [part.start for part in parts])
        self._gap_ends = np.append(self._gap_ends, [part.end for part in parts])
        self._bytes = np.append(self._bytes, [self._bytes[index]] * len(parts))


def _step_bounds(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first event of each step's accesses and the one after the last, shapes (steps,)."""
    events = np.flatnonzero(trace.is_access)
    steps = trace.step[events]
    starts = np.full(trace.step_count, len(trace), dtype=np.int64)
    np.minimum.at(starts, steps, events)
    ends = np.zeros(trace.step_count, dtype=np.int64)
    np.maximum.at(ends, steps, events + 1)
    return starts, ends


def apply_plan(trace: Trace, flow: Dataflow, choices: Sequence[GapChoice]) -> Occupancy:
    """Return the replay of ``trace`` with every choice as events: evictions, frees, steps run again."""
    writer = _PlanWriter(trace, flow)
    leaving, returning, early_frees = _by_event(trace, flow, choices)
    for event in range(len(trace) + 1):
        for choice in leaving.get(event, ()):
            writer.remove(choice)
        for choice in returning.get(event, ()):
            writer.recompute_value(choice)
        if event < len(trace) and event not in early_frees:
            writer.copy(event)
    later = {flow.values[choice.gap.value].buffer for choice in choices if choice.gap.last_step < 0}
    return Occupancy(writer.trace(), evictions=True, before=writer.present_at_start(later))


_ByEvent = dict[int, list[GapChoice]]


def _by_event(
    trace: Trace, flow: Dataflow, choices: Sequence[GapChoice]
) -> tuple[_ByEvent, _ByEvent, set[int]]:
    """Return the choices by the event before which values leave, and return, and the frees to leave out."""
    leaving: _ByEvent = defaultdict(list)
    returning: _ByEvent = defaultdict(list)
    early_frees: set[int] = set()
    for choice in choices:
        gap = choice.gap
        if gap.last_step >= 0:
            leaving[gap.start].append(choice)
        if choice.how == "recompute":
            returning[gap.end].append(choice)
        dies = flow.values[gap.value].dies
        if choice.how == "drop" and dies < len(trace) and trace.kind[dies] == Kind.FREE:
            early_frees.add(dies)
    return leaving, returning, early_frees


_WRITE = int(Kind.WRITE)


class _PlanWriter:
    """Writer of the new trace; recomputed steps move later steps back."""

    def __init__(self, trace: Trace, flow: Dataflow) -> None:
        self._trace, self._flow = trace, flow
        self._buffers: list[int] = []
        self._kinds: list[int] = []
        self._steps: list[int] = []
        self._original_steps: list[int] = []
        """Step of the old trace per step of the new one."""
        self._sizes: list[int] = trace.size_bytes.tolist()
        self._original_buffers: list[int] = list(range(trace.buffer_count))
        """Buffer of the old trace per buffer of the new one."""
        self._columns = (trace.buffer.tolist(), trace.kind.tolist(), trace.step.tolist())
        self._last_copied_step = -1

    def copy(self, event: int) -> None:
        buffer, kind, step = (column[event] for column in self._columns)
        while kind <= _WRITE and self._last_copied_step < step:
            self._last_copied_step += 1
            self._original_steps.append(self._last_copied_step)
        self._add(buffer, kind)

    def remove(self, choice: GapChoice) -> None:
        buffer = self._flow.values[choice.gap.value].buffer
        self._add(buffer, Kind.EVICT if choice.how == "offload" else Kind.FREE)

    def recompute_value(self, choice: GapChoice) -> None:
        values = self._flow.values
        target = values[choice.gap.value]
        made = {choice.gap.value: target.buffer}
        for step in choice.steps:
            self._original_steps.append(step)
            operation = self._flow.operations[step]
            for value in operation.reads:
                self._add(made.get(value, values[value].buffer), Kind.READ)
            for value in operation.writes:
                made.setdefault(value, self._new_buffer(values[value].buffer))
                self._add(made[value], Kind.WRITE)
        for buffer in made.values():
            if buffer != target.buffer:
                self._add(buffer, Kind.FREE)

    def trace(self) -> Trace:
        trace = self._trace
        self._original_steps.extend(range(self._last_copied_step + 1, trace.step_count))
        order = list(dict.fromkeys(self._buffers))
        old = [self._original_buffers[buffer] for buffer in order]
        sizes = np.array(self._sizes, dtype=np.int64)
        columns: dict[str, Any] = {
            name: [getattr(trace, name)[each] for each in old] for name in ("names", "roles", "dtypes")
        }
        return Trace.from_arrays(
            np.array(self._buffers, dtype=np.int64),
            sizes[self._buffers],
            kinds=np.array(self._kinds, dtype=np.int64),
            steps=np.array(self._steps, dtype=np.int64),
            ops=[trace.ops[step] for step in self._original_steps],
            flops=trace.flops[self._original_steps],
            seconds=trace.seconds[self._original_steps],
            model_type=trace.model_type,
            **columns,
        )

    def present_at_start(self, later: set[int]) -> NDArray[np.bool_]:
        """Return whether each buffer is in memory before the first event; those fetched ``later`` are not."""
        order = list(dict.fromkeys(self._buffers))
        first = dict(zip(self._buffers[::-1], self._kinds[::-1], strict=True))
        return np.array([first[each] == Kind.READ and each not in later for each in order], dtype=np.bool_)

    def _add(self, buffer: int, kind: int) -> None:
        self._buffers.append(buffer)
        self._kinds.append(int(kind))
        self._steps.append(max(len(self._original_steps) - 1, 0))

    def _new_buffer(self, like: int) -> int:
        self._sizes.append(self._sizes[like])
        self._original_buffers.append(like)
        return len(self._sizes) - 1
