"""What is worth keeping in the first tier throughout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.advice_parts import Resident
from accelera.simulator.replay import simulate
from accelera.simulator.stays import compulsory_reads
from accelera.trace import Kind, Trace, stack_distances


def worth_keeping(trace: Trace, capacity_bytes: int, room_bytes: int) -> tuple[list[int], list[Resident]]:
    """Return buffers, and what is to be said of each, that LRU fetches again, within ``room_bytes``.

    The most bytes saved per byte of room go first, that is the most often missed; of equals the smaller.
    What is fetched because it is new, at first or after a free, no room saves.
    """
    needed = stack_distances(trace).needed_bytes
    reads = trace.kind[trace.is_access] == Kind.READ
    missed = reads & ~compulsory_reads(trace) & ((needed < 0) | (needed > capacity_bytes))
    misses = np.bincount(trace.accessed[missed], minlength=trace.buffer_count)
    order = np.lexsort((trace.size_bytes, -misses))
    kept: list[int] = []
    for buffer in order[misses[order] > 0].tolist():
        size = int(trace.size_bytes[buffer])
        if size <= room_bytes:
            kept.append(buffer)
            room_bytes -= size
    found = [
        Resident(
            trace.names[each],
            int(trace.size_bytes[each]),
            int(misses[each] * trace.size_bytes[each]),
        )
        for each in kept
    ]
    return kept, found


def moved_with_kept(trace: Trace, kept: list[int], capacity_bytes: int, policy: str) -> int:
    """Return what ``policy`` moves when the buffers ``kept`` never leave, what these move included."""
    chosen = np.zeros(trace.buffer_count, np.bool_)
    chosen[kept] = True
    room_bytes = int(trace.size_bytes[chosen].sum())
    rest, staying = _only(trace, ~chosen), _only(trace, chosen)
    moved = simulate(rest, capacity_bytes - room_bytes, policy).moved_bytes if len(rest) else 0
    return moved + simulate(staying, room_bytes, policy).moved_bytes


def _only(trace: Trace, chosen: NDArray[np.bool_]) -> Trace:
    """Return ``trace`` with the events of chosen buffers alone."""
    number = np.cumsum(chosen, dtype=np.int32) - 1
    rows, left = chosen[trace.buffer], np.flatnonzero(chosen).tolist()
    return replace(
        trace,
        buffer=number[trace.buffer[rows]].astype(np.int32),
        kind=trace.kind[rows],
        step=trace.step[rows],
        stride=trace.stride[rows],
        size_bytes=trace.size_bytes[chosen],
        names=tuple(trace.names[each] for each in left),
        roles=tuple(trace.roles[each] for each in left),
        dtypes=tuple(trace.dtypes[each] for each in left),
    )
