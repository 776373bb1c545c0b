"""What accesses and steps look like apart from whose they are: how one iteration is known in another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Trace


def access_signatures(trace: Trace) -> NDArray[np.int64]:
    """Return a dense number per access, equal where op, place among operands, size and kind are.

    Shape (accesses,).
    """
    accesses = trace.is_access
    steps = trace.step[accesses]
    columns = (
        _op_numbers(trace)[steps],
        occurrences(steps),
        trace.size_bytes[trace.buffer[accesses]],
        trace.kind[accesses],
    )
    return numbered(*columns)


def step_signatures(trace: Trace) -> NDArray[np.int64]:
    """Return a dense number per step, equal where op and the signatures of all accesses are; (steps,)."""
    signature = access_signatures(trace).astype(np.uint64)
    steps = trace.step[trace.is_access]
    mixed = np.zeros(trace.step_count, dtype=np.uint64)
    np.add.at(mixed, steps, _scrambled(signature))
    return numbered(_op_numbers(trace), mixed)


def occurrences(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return per position how often its value came before; shape (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    new = np.ones(len(values), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(new, np.arange(len(values)), 0))
    counts = np.empty(len(values), dtype=np.int64)
    counts[order] = np.arange(len(values)) - start
    return counts


def numbered(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return one dense number per row, equal where all columns are; shape (n,)."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, inverse = np.unique(column, return_inverse=True)
        widest = int(inverse.max(initial=0)) + 1
        _, number = np.unique(number * widest + inverse, return_inverse=True)
    return number.astype(np.int64)


def _op_numbers(trace: Trace) -> NDArray[np.int64]:
    return np.unique(np.array(trace.ops, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 well-mixed bits per value (the finisher of SplitMix64), whose sums tell sets apart."""
    mixed: NDArray[np.uint64] = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
