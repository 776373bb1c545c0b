"""Which contents to keep, to offload, to compute again or to drop early, so that a run fits a budget.

The peak of the replay is lowered step by step: of the values that are held there without being needed,
the one that costs the fewest seconds per byte leaves until its next use. It is dropped when nobody reads
it again, computed again when its operands still lie there, and moved out and back otherwise. Nothing is
estimated about memory: the curve that decides is the curve of the replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from accelera.memory import Hierarchy
from accelera.simulator.compiling.dataflow import OPTIMIZER, Dataflow, Value
from accelera.simulator.compiling.operations import OpKind, base_name
from accelera.trace import Kind, Occupancy, Trace

LONGEST_CHAIN = 16
"""Steps that may be run again to bring one value back."""
HIDDEN = 0.1
"""What a transfer costs of its time while the link still has idle time to hide it in."""
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
    """Step of the later use; -1 when nobody reads it again."""
    last_step: int
    """Step of the earlier use; -1 before the first."""
    repeatable: bool = True
    """Whether the value may be computed again at its end."""


@dataclass(frozen=True)
class Choice:
    """What happens to a value in one gap."""

    gap: Gap
    how: str
    """``offload``, ``recompute`` or ``drop``."""
    cost_s: float
    """Seconds that are expected to be added."""
    steps: tuple[int, ...] = ()
    """Steps run again, in order."""


@dataclass
class Planner:
    """Lowers the peak of one trace; budgets come in falling order, each builds on the one before."""

    trace: Trace
    flow: Dataflow
    held: Occupancy
    seconds: NDArray[np.float64]
    """Seconds per step, shape (steps,)."""
    hierarchy: Hierarchy
    recompute: bool = True
    choices: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.curve = self.held.live_bytes.copy()
        self._starts, self._ends = _step_bounds(self.trace)
        least = SMALLEST_SHARE * self.held.peak_bytes
        self._gaps = [gap for gap in self._all_gaps() if self._value(gap).nbytes > least]
        self._from = np.array([gap.start for gap in self._gaps], dtype=np.int64)
        self._until = np.array([gap.end for gap in self._gaps], dtype=np.int64)
        self._bytes = np.array([self._value(gap).nbytes for gap in self._gaps], dtype=np.int64)
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, gap in enumerate(self._gaps):
            self._places[gap.value].append(place)
        self._written = {value.buffer for value in self.flow.values if value.producer >= 0}
        self._elapsed = np.concatenate([[0.0], np.cumsum(self.seconds)])
        self._out: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._link_s = 0.0

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once, all choices counted."""
        return int(self.curve.max(initial=0))

    def lower_to(self, budget_bytes: int) -> bool:
        """Choose until the peak is at most ``budget_bytes``; return whether that was possible."""
        while self.peak_bytes > budget_bytes:
            peak = int(self.curve.argmax())
            for place, choice in self._candidates(peak, budget_bytes):
                if self.curve[peak] > budget_bytes and self._still_holds(choice):
                    self._take(place, choice)
            if self.curve[peak] > budget_bytes:
                return False
        return True

    def _candidates(self, peak: int, budget_bytes: int) -> list[tuple[int, Choice]]:
        """Return what may leave at event ``peak``, the fewest seconds per byte first."""
        around = np.flatnonzero((self._from <= peak) & (peak < self._until)).tolist()
        found = [(place, self._choice(self._gaps[place], budget_bytes)) for place in around]
        sizes = self._bytes
        return sorted(found, key=lambda each: (each[1].cost_s / sizes[each[0]], -sizes[each[0]], each[0]))

    def _still_holds(self, choice: Choice) -> bool:
        """Whether no choice since has taken away what this one needs, or needs what this one takes."""
        gap = choice.gap
        if not any(self._gaps[place] is gap and self._until[place] > 0 for place in self._places[gap.value]):
            return False
        return choice.how != "recompute" or self._chain(gap.value, gap.end) == choice.steps

    def _all_gaps(self) -> Iterator[Gap]:
        for index, value in enumerate(self.flow.values):
            uses = [] if value.producer < 0 else [value.producer]
            uses += [step for step in value.consumers if step not in uses[-1:]]
            if value.producer < 0 and uses:
                yield Gap(index, 0, int(self._starts[uses[0]]), uses[0], -1)
            for earlier, later in pairwise(uses):
                yield Gap(index, int(self._ends[earlier]), int(self._starts[later]), later, earlier)
            if uses:
                yield Gap(index, int(self._ends[uses[-1]]), self._end_of(value), -1, uses[-1])

    def _end_of(self, value: Value) -> int:
        """Return the event from which the value's memory is free, or another value's."""
        overwritten = not value.stays and self.trace.kind[value.dies] != Kind.FREE
        return int(self._starts[self.trace.step[value.dies]]) if overwritten else value.dies

    def _value(self, gap: Gap) -> Value:
        return self.flow.values[gap.value]

    def _choice(self, gap: Gap, budget_bytes: int) -> Choice:
        value = self._value(gap)
        if gap.next_step < 0 and not value.stays:
            return Choice(gap, "drop", 0.0)
        offload = Choice(gap, "offload", self._transfer_s(gap))
        if not (self.recompute and gap.repeatable and gap.next_step >= 0 and gap.last_step >= 0):
            return offload
        steps = self._chain(gap.value, gap.end)
        if steps is None or not self._chain_fits(gap, steps, budget_bytes):
            return offload
        cost_s = float(self.seconds[list(steps)].sum())
        return Choice(gap, "recompute", cost_s, steps) if cost_s < offload.cost_s else offload

    def _transfer_s(self, gap: Gap) -> float:
        """Return the seconds that moving a value out and back is expected to add."""
        busy_s = self._busy_s(gap)
        earlier, later = max(gap.last_step, 0), gap.next_step if gap.next_step >= 0 else self.trace.step_count
        between_s = self._elapsed[later] - self._elapsed[earlier]
        hidden = busy_s <= between_s and self._link_s + busy_s < self._elapsed[-1]
        return busy_s * (HIDDEN if hidden else 1.0)

    def _busy_s(self, gap: Gap) -> float:
        value, link = self._value(gap), self.hierarchy.tiers[1]
        used = gap.last_step >= 0
        there = link.away_s_per_byte if used and value.buffer in self._written else 0.0
        back = link.towards_s_per_byte if used and gap.next_step >= 0 else 0.0
        return value.nbytes * (there + back)

    def _chain(self, value: int, event: int) -> tuple[int, ...] | None:
        """Return the steps that make ``value`` again from what lies there at ``event``, None if none do."""
        steps: set[int] = set()
        todo = [value]
        while todo:
            producer = self.flow.values[todo.pop()].producer
            if producer in steps:
                continue
            if producer < 0 or not self._repeats(producer) or len(steps) == LONGEST_CHAIN:
                return None
            steps.add(producer)
            todo.extend(each for each in self.flow.operations[producer].reads if not self._lies(each, event))
        return tuple(sorted(steps))

    def _repeats(self, step: int) -> bool:
        operation = self.flow.operations[step]
        values = self.flow.values
        in_place = {values[v].buffer for v in operation.reads} & {values[v].buffer for v in operation.writes}
        named = base_name(operation.op)
        unsure = operation.kind is OpKind.OPAQUE or any(word in named for word in _RANDOM)
        return not in_place and not unsure and operation.phase != OPTIMIZER

    def _lies(self, value: int, event: int) -> bool:
        out = any(start <= event <= end for start, end in self._out.get(value, ()))
        return event < self.flow.values[value].dies and not out

    def _chain_fits(self, gap: Gap, steps: Sequence[int], budget_bytes: int) -> bool:
        made = sum(self.flow.operations[step].written_bytes for step in steps)
        return int(self.curve[gap.end - 1]) + made <= budget_bytes

    def _take(self, place: int, choice: Choice) -> None:
        gap = choice.gap
        self.curve[gap.start : gap.end] -= self._bytes[place]
        self._out[gap.value].append((gap.start, gap.end))
        if choice.how == "offload":
            self._link_s += self._busy_s(gap)
        self._keep_operands(choice)
        self._until[place] = -1
        self.choices.append(choice)

    def _keep_operands(self, choice: Choice) -> None:
        """Let what is read to make a value again stay until then."""
        operations = [self.flow.operations[step] for step in choice.steps]
        made = {value for each in operations for value in each.writes}
        for value in {value for each in operations for value in each.reads} - made:
            for place in self._places[value]:
                if self._from[place] <= choice.gap.end < self._until[place]:
                    self._split(place, choice.gap)

    def _split(self, place: int, use: Gap) -> None:
        """Replace a gap by what is left of it before and after the step that ``use`` ends with."""
        gap = self._gaps[place]
        self._until[place] = -1
        parts = [replace(gap, end=use.end, next_step=use.next_step, repeatable=False)]
        after = int(self._ends[use.next_step])
        if after < gap.end:
            parts.append(replace(gap, start=after, last_step=use.next_step))
        for part in parts:
            self._places[gap.value].append(len(self._gaps))
            self._gaps.append(part)
        self._from = np.append(self._from, [part.start for part in parts])
        self._until = np.append(self._until, [part.end for part in parts])
        self._bytes = np.append(self._bytes, [self._bytes[place]] * len(parts))


def _step_bounds(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first event of each step's accesses and the one after the last, shapes (steps,)."""
    events = np.flatnonzero(trace.is_access)
    steps = trace.step[events]
    starts = np.full(trace.step_count, len(trace), dtype=np.int64)
    np.minimum.at(starts, steps, events)
    ends = np.zeros(trace.step_count, dtype=np.int64)
    np.maximum.at(ends, steps, events + 1)
    return starts, ends
