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
    strides = _strides(tape, buffers, kinds, steps)
    dead, when = _deaths(tape, results, buffers, steps)
    order = np.argsort(np.concatenate([steps, when]), kind="stable")
    ids = np.concatenate([buffers, dead])[order]
    used, first = np.unique(ids, return_index=True)
    described = used[np.argsort(first)].tolist()
    sizes = np.array(tape.sizes, dtype=np.int64)
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


def _strides(tape: Tape, buffers: Integers, kinds: Integers, steps: Integers) -> Integers:
    """Return the stride of each access."""
    found = np.ones(len(buffers), dtype=np.int64)
    if not tape.strides:
        return found
    places = np.array(list(tape.strides), dtype=np.int64)
    noted = places[:, 0] * len(tape.sizes) + places[:, 1]
    order = np.argsort(noted)
    wanted = steps * len(tape.sizes) + buffers
    at = order[np.minimum(np.searchsorted(noted, wanted, sorter=order), len(order) - 1)]
    here = (noted[at] == wanted) & (kinds == Kind.READ)
    found[here] = np.array(list(tape.strides.values()), dtype=np.int64)[at[here]]
    return found


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
