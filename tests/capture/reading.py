"""Traces told in words, and what must hold for every one."""

from __future__ import annotations

import numpy as np

from accelera.trace import Kind, Trace


def told(trace: Trace) -> list[str]:
    """Every event as "op KIND name", in order."""
    rows = zip(trace.step, trace.kind, trace.buffer, strict=True)
    return [f"{trace.ops[step]} {Kind(kind).name} {trace.names[buffer]}" for step, kind, buffer in rows]


def events(trace: Trace) -> list[tuple[object, ...]]:
    """Everything that is known of every event, and of every step."""
    buffers = [
        list(column)
        for column in zip(trace.size_bytes.tolist(), trace.names, trace.roles, trace.dtypes, strict=True)
    ]
    steps = list(zip(trace.ops, trace.flops.tolist(), strict=True))
    rows = zip(
        *(column.tolist() for column in (trace.step, trace.kind, trace.buffer, trace.stride)), strict=True
    )
    return [(*steps[step], kind, buffer, stride, *buffers[buffer]) for step, kind, buffer, stride in rows]


def check_conserved(trace: Trace) -> None:
    """No use after a free, nothing freed twice, and outsiders are what existed before."""
    for buffer in range(trace.buffer_count):
        kinds = trace.kind[trace.buffer == buffer]
        frees = np.flatnonzero(kinds == Kind.FREE)
        assert len(frees) <= 1, trace.names[buffer]
        assert not len(frees) or frees[0] == len(kinds) - 1, trace.names[buffer]
        if kinds[0] == Kind.READ:
            assert trace.roles[buffer] in {"weight", "input", "optimizer_state"}, trace.names[buffer]
    assert set(trace.kind.tolist()) <= {Kind.READ, Kind.WRITE, Kind.FREE}
    assert all(trace.names)
    assert all(trace.roles)
    assert all(trace.dtypes)
    assert trace.ops[0]
    assert np.all(np.diff(trace.step) >= 0)


def alive_at_end(trace: Trace) -> set[str]:
    """Names of the buffers that are never freed."""
    freed = set(trace.buffer[trace.kind == Kind.FREE].tolist())
    return {trace.names[each] for each in range(trace.buffer_count) if each not in freed}
