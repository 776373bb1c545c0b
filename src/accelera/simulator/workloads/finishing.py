"""A tape made into a trace: events in columns, every passing buffer freed after its last access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.workloads.tape import LASTING, Tape
from accelera.trace import Kind, Trace

Integers = NDArray[np.int64]


def finished(tape: Tape, results: tuple[int, ...], *, model_type: str, meta: Mapping[str, Any]) -> Trace:
    """Return the trace of ``tape``; ``results`` are kept alive to the end."""
    buffers, kinds, steps = _accesses(tape)
    strides = np.ones(len(buffers), dtype=np.int64)
    for (step, buffer), stride in tape.strides.items():
        low, high = np.searchsorted(steps, (step, step + 1))
        here = slice(int(low), int(high))
        strides[here][(buffers[here] == buffer) & (kinds[here] == Kind.READ)] = stride
    dead, when = _deaths(tape, results, buffers, steps)
    order = np.argsort(np.concatenate([steps, when]), kind="stable")
    ids = np.concatenate([buffers, dead])[order]
    used, first = np.unique(ids, return_index=True)
    described = used[np.argsort(first)].tolist()
    sizes = _sizes(tape)
    return Trace.from_arrays(
        ids,
        sizes[ids],
        kinds=np.concatenate([kinds, np.full(len(dead), Kind.FREE)])[order],
        steps=np.concatenate([steps, when])[order],
        strides=np.concatenate([strides, np.ones(len(dead), dtype=np.int64)])[order],
        names=[tape.names[each] for each in described],
        roles=[tape.roles[each] for each in described],
        dtypes=[tape.dtypes[each] for each in described],
        ops=[step.op for step in tape.steps],
        flops=[step.flops for step in tape.steps],
        model_type=model_type,
        meta={**meta, "iterations": tape.iteration_starts},
    )


def _accesses(tape: Tape) -> tuple[Integers, Integers, Integers]:
    """Return buffer, kind and step per access: a step reads, then writes."""
    buffers: list[int] = []
    counts: list[int] = []
    for step in tape.steps:
        buffers += (*step.again, *step.reads, *step.writes)
        counts += (len(step.again) + len(step.reads), len(step.writes))
    repeats = np.array(counts, dtype=np.int64)
    halves = np.repeat(np.arange(len(repeats), dtype=np.int64), repeats)
    return np.array(buffers, dtype=np.int64), halves % 2, halves // 2


def _deaths(
    tape: Tape, results: tuple[int, ...], buffers: Integers, steps: Integers
) -> tuple[Integers, Integers]:
    """Return the buffers that die and the steps after which they do."""
    last = np.full(len(tape.sizes), -1, dtype=np.int64)
    last[buffers] = steps
    dies = np.array([role not in LASTING for role in tape.roles]) & (last >= 0)
    dies[list(results)] = False
    dead = np.flatnonzero(dies)
    return dead, last[dead]


def _sizes(tape: Tape) -> Integers:
    largest = max(tape.sizes)
    if largest >= 1 << 62:
        raise ValueError(
            f"[workload] {tape.names[tape.sizes.index(largest)]} would have {largest} bytes, over 2**62; "
            "take a smaller batch_size, seq_length or hidden_size"
        )
    return np.array(tape.sizes, dtype=np.int64)
