"""Checkpoints per block as plans of a recorded step: within blocks of the forward pass all runs again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accelera.tensora.step_plans import LEAST_BYTES, SPILL_SECONDS_PER_BYTE, StepPlans

KEEP, RECOMPUTE = 0, 1


def checkpointed(plans: StepPlans, blocks: int) -> list[tuple[int, float]]:
    """Return the arena's top and the added seconds where the first of some blocks keep their inputs alone."""
    gaps = plans.graph.gaps(LEAST_BYTES)
    peak = _peak_operation(plans.columns)
    last_read = _last_reads(plans.columns, peak)
    ends = _block_borders(plans.columns, last_read, peak, blocks)
    born = plans.columns["born"]
    found = []
    for count in range(1, blocks + 1):
        fates = bytearray(len(gaps))
        for g, (value, after, before) in enumerate(gaps):
            crosses = any(born[value] <= end < last_read[value] for end in ends)
            if after < peak < before and born[value] <= ends[count - 1] and not crosses:
                fates[g] = _fate_of(plans, g)
        seconds, _, top = _costs_of(plans, fates)
        if math.isfinite(seconds):
            found.append((top, seconds))
    return found


def _costs_of(plans: StepPlans, fates: bytearray) -> tuple[float, int, int]:
    """Return added seconds, live bytes and the arena's top."""
    seconds = plans.graph.added_seconds(SPILL_SECONDS_PER_BYTE, LEAST_BYTES, bytes(fates))
    if not math.isfinite(seconds):
        return seconds, 0, 0
    _, _, top, live, seconds = plans.graph.schedule(SPILL_SECONDS_PER_BYTE, LEAST_BYTES, bytes(fates))
    return seconds, live, top


def _fate_of(plans: StepPlans, gap: int) -> int:
    """Return RECOMPUTE if the value of a gap can be computed again, else KEEP."""
    fates = bytearray(len(plans.graph.gaps(LEAST_BYTES)))
    fates[gap] = RECOMPUTE
    seconds = plans.graph.added_seconds(SPILL_SECONDS_PER_BYTE, LEAST_BYTES, bytes(fates))
    return RECOMPUTE if math.isfinite(seconds) else KEEP


def _live_bytes(columns: dict[str, Any], begins: Any, ends: Any) -> Any:
    """Return the bytes at each operation of values that live from `begins` to before `ends`."""
    change = np.zeros(len(columns["names"]) + 1, "int64")
    for value, nbytes in enumerate(columns["nbytes"]):
        if columns["born"][value] >= 0 and columns["in_arena"][value] and begins[value] < ends[value]:
            change[begins[value]] += nbytes
            change[ends[value]] -= nbytes
    return np.cumsum(change)[:-1]


def _peak_operation(columns: dict[str, Any]) -> int:
    """Return the operation with the most live bytes in a step without a budget."""
    last = len(columns["names"])
    return int(
        _live_bytes(
            columns, columns["born"], [min(int(each) + 1, last) for each in columns["freed"]]
        ).argmax()
    )


def _last_reads(columns: dict[str, Any], peak: int) -> list[int]:
    """Return for each value the last operation up to the peak that reads it; -1 where none does."""
    starts, items = columns["reads"]
    last = [-1] * len(columns["nbytes"])
    for t in range(peak + 1):
        for value in items[starts[t] : starts[t + 1]]:
            last[value] = t
    return last


def _block_borders(columns: dict[str, Any], last_read: list[int], peak: int, blocks: int) -> list[int]:
    """Return one operation in each of `blocks` parts: that after which the fewest bytes are needed later."""
    needed = _live_bytes(columns, columns["born"], last_read)
    parts = [
        (peak * i // blocks, max(peak * (i + 1) // blocks, peak * i // blocks + 1)) for i in range(blocks)
    ]
    return [first + int(needed[first:end].argmin()) for first, end in parts]
