"""What a run holds at its peak, and how little it could hold."""

from __future__ import annotations

from dataclasses import dataclass

from accelera.simulator.compiling.figure import Figure, Source
from accelera.trace import Kind, Occupancy, Trace, largest_op

TOP = 20


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that lies in memory at the peak."""

    name: str
    role: str
    size: Figure
    made_by: str
    """The operation that wrote it last; ``""`` when it was there before."""


@dataclass(frozen=True)
class MemoryPrediction:
    """Peak memory of the program as it was traced."""

    peak: Figure
    peak_op: str
    """The operation that runs at the peak."""
    peak_step: int
    by_role: dict[str, Figure]
    """Bytes at the peak by role, the most first."""
    top: tuple[LiveTensor, ...]
    """The largest tensors at the peak."""
    hard_floor: Figure
    """Most bytes that one step touches: with less, no schedule runs it whole."""
    hard_floor_op: str


def predict_memory(held: Occupancy) -> MemoryPrediction:
    """Return what is held at the peak of a replay."""
    trace, source = held.trace, source_of(held.trace)
    event = max(held.peak_event, 0)
    floor = largest_op(trace)
    step = int(trace.step[event]) if len(trace) else 0
    return MemoryPrediction(
        peak=Figure(held.peak_bytes, "B", source),
        peak_op=trace.ops[step] if trace.step_count else "",
        peak_step=step,
        by_role={
            role or "other": Figure(nbytes, "B", source) for role, nbytes in held.peak_by_role().items()
        },
        top=_top(held, event, source),
        hard_floor=Figure(floor.size_bytes, "B", source),
        hard_floor_op=floor.op,
    )


def source_of(trace: Trace) -> Source:
    """Return whether a trace's sizes were counted in a real run or followed from shapes."""
    return "measured" if trace.meta.get("fake") is False else "analytic"


def _top(held: Occupancy, event: int, source: Source) -> tuple[LiveTensor, ...]:
    trace = held.trace
    writer: dict[int, str] = {}
    for buffer, kind, step in zip(trace.buffer[: event + 1], trace.kind, trace.step, strict=False):
        if kind == Kind.WRITE:
            writer[int(buffer)] = trace.ops[step]
    return tuple(
        LiveTensor(
            trace.names[buffer],
            trace.roles[buffer] or "other",
            Figure(int(trace.size_bytes[buffer]), "B", source),
            writer.get(buffer, ""),
        )
        for buffer in held.largest_at_peak[:TOP].tolist()
    )
