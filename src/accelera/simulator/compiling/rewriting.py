"""A trace with a plan carried out: what leaves, leaves; what is made again is made by steps of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.compiling.dataflow import Dataflow
from accelera.simulator.compiling.planning import Choice
from accelera.trace import Kind, Occupancy, Trace


def carried_out(trace: Trace, flow: Dataflow, choices: Sequence[Choice]) -> Occupancy:
    """Return the replay of ``trace`` with every choice as events: evictions, frees, steps run again."""
    writer = _Writer(trace, flow)
    leaving, returning, gone = _by_event(trace, flow, choices)
    for event in range(len(trace) + 1):
        for choice in leaving.get(event, ()):
            writer.let_go(choice)
        for choice in returning.get(event, ()):
            writer.make_again(choice)
        if event < len(trace) and event not in gone:
            writer.copy(event)
    later = {flow.values[choice.gap.value].buffer for choice in choices if choice.gap.last_step < 0}
    return Occupancy(writer.trace(), evictions=True, before=writer.held_at_first(later))


_ByEvent = dict[int, list[Choice]]


def _by_event(trace: Trace, flow: Dataflow, choices: Sequence[Choice]) -> tuple[_ByEvent, _ByEvent, set[int]]:
    """Return choices by the event before which values leave and return, and the frees that came early."""
    leaving: _ByEvent = defaultdict(list)
    returning: _ByEvent = defaultdict(list)
    gone: set[int] = set()
    for choice in choices:
        gap = choice.gap
        if gap.last_step >= 0:
            leaving[gap.start].append(choice)
        if choice.how == "recompute":
            returning[gap.end].append(choice)
        dies = flow.values[gap.value].dies
        if choice.how == "drop" and dies < len(trace) and trace.kind[dies] == Kind.FREE:
            gone.add(dies)
    return leaving, returning, gone


_WRITE = int(Kind.WRITE)


class _Writer:
    """The events of the new trace; steps that are run again push later ones back."""

    def __init__(self, trace: Trace, flow: Dataflow) -> None:
        self._trace, self._flow = trace, flow
        self._buffers: list[int] = []
        self._kinds: list[int] = []
        self._steps: list[int] = []
        self._source: list[int] = []
        """Step of the old trace per step of the new one."""
        self._sizes: list[int] = trace.size_bytes.tolist()
        self._made_of: list[int] = list(range(trace.buffer_count))
        """Buffer of the old trace per buffer of the new one."""
        self._old = (trace.buffer.tolist(), trace.kind.tolist(), trace.step.tolist())
        self._ready = -1

    def copy(self, event: int) -> None:
        buffer, kind, step = (column[event] for column in self._old)
        while kind <= _WRITE and self._ready < step:
            self._ready += 1
            self._source.append(self._ready)
        self._add(buffer, kind)

    def let_go(self, choice: Choice) -> None:
        buffer = self._flow.values[choice.gap.value].buffer
        self._add(buffer, Kind.EVICT if choice.how == "offload" else Kind.FREE)

    def make_again(self, choice: Choice) -> None:
        values = self._flow.values
        target = values[choice.gap.value]
        made = {choice.gap.value: target.buffer}
        for step in choice.steps:
            self._source.append(step)
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
        self._source.extend(range(self._ready + 1, trace.step_count))
        order = list(dict.fromkeys(self._buffers))
        old = [self._made_of[buffer] for buffer in order]
        sizes = np.array(self._sizes, dtype=np.int64)
        columns: dict[str, Any] = {
            name: [getattr(trace, name)[each] for each in old] for name in ("names", "roles", "dtypes")
        }
        return Trace.from_arrays(
            np.array(self._buffers, dtype=np.int64),
            sizes[self._buffers],
            kinds=np.array(self._kinds, dtype=np.int64),
            steps=np.array(self._steps, dtype=np.int64),
            ops=[trace.ops[step] for step in self._source],
            flops=trace.flops[self._source],
            seconds=trace.seconds[self._source],
            model_type=trace.model_type,
            **columns,
        )

    def held_at_first(self, later: set[int]) -> NDArray[np.bool_]:
        """Return which buffers lie there before the first event: not those fetched ``later``."""
        order = list(dict.fromkeys(self._buffers))
        first = dict(zip(self._buffers[::-1], self._kinds[::-1], strict=True))
        return np.array([first[each] == Kind.READ and each not in later for each in order], dtype=np.bool_)

    def _add(self, buffer: int, kind: int) -> None:
        self._buffers.append(buffer)
        self._kinds.append(int(kind))
        self._steps.append(max(len(self._source) - 1, 0))

    def _new_buffer(self, like: int) -> int:
        self._sizes.append(self._sizes[like])
        self._made_of.append(like)
        return len(self._sizes) - 1
