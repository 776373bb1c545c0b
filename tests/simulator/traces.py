"""Small random traces with a life in them: steps of several operands, updates, frees, saves, releases."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from accelera.trace import Kind, Trace


@st.composite
def lively_traces(draw: Any, *, buffers: int = 4, steps: int = 6, releases: bool = False) -> Trace:
    """Draw a trace; where ``releases``, every access is let go in its step, some before its end."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=buffers, max_size=buffers))
    events: list[tuple[int, Kind, int]] = []
    freed: set[int] = set()
    for step in range(draw(st.integers(1, steps))):
        operands = draw(st.lists(st.integers(0, buffers - 1), min_size=1, max_size=3, unique=True))
        held: list[int] = []
        for buffer in operands:
            kinds = (Kind.WRITE,) if buffer in freed else draw(st.sampled_from(_ACCESSES))
            freed.discard(buffer)
            for kind in kinds:
                events.append((buffer, kind, step))
                held.append(buffer)
            if releases and draw(st.booleans()):
                events += [(each, Kind.RELEASE, step) for each in held]
                held = []
        events += [(each, Kind.RELEASE, step) for each in held if releases]
        after = draw(st.sampled_from((None, None, Kind.FREE, Kind.SAVE)))
        if after is not None:
            events.append((draw(st.sampled_from(operands)), after, step))
        if after == Kind.FREE:
            freed.add(events[-1][0])
    return _trace_of(events, sizes)


@st.composite
def wild_traces(draw: Any, *, buffers: int = 4, steps: int = 6) -> Trace:
    """Draw a trace in which anything may happen at any time: reads of the freed, saves of the absent."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=buffers, max_size=buffers))
    buffer = st.integers(0, buffers - 1)
    kind = st.sampled_from((Kind.READ, Kind.READ, Kind.WRITE, Kind.FREE, Kind.SAVE, Kind.EVICT))
    happens = draw(st.lists(st.lists(st.tuples(buffer, kind), min_size=1, max_size=4), max_size=steps))
    return _trace_of(
        [(each, kind, step) for step, pairs in enumerate(happens) for each, kind in pairs], sizes
    )


@st.composite
def wild_records(draw: Any, *, buffers: int = 4, steps: int = 6) -> Trace:
    """Draw such a trace that records its releases: at once or later, one too many or too few."""
    trace = draw(wild_traces(buffers=buffers, steps=steps))
    events: list[tuple[int, Kind, int]] = [(0, Kind.RELEASE, 0)]
    owed: list[tuple[int, Kind, int]] = []
    for buffer, kind, step in zip(
        trace.buffer.tolist(), trace.kind.tolist(), trace.step.tolist(), strict=True
    ):
        events.append((buffer, Kind(kind), step))
        if kind <= Kind.WRITE:
            owed.append((buffer, Kind.RELEASE, step))
        if draw(st.booleans()):
            events += owed
            owed = []
    return _trace_of(events + owed[: draw(st.integers(0, len(owed)))], [*trace.size_bytes.tolist(), 1])


def _trace_of(events: list[tuple[int, Kind, int]], sizes: list[int]) -> Trace:
    return Trace.from_arrays(
        [buffer for buffer, _, _ in events],
        [sizes[buffer] for buffer, _, _ in events],
        kinds=[kind for _, kind, _ in events],
        steps=[step for _, _, step in events],
    )


_ACCESSES = ((Kind.READ,), (Kind.READ,), (Kind.WRITE,), (Kind.READ, Kind.WRITE))
