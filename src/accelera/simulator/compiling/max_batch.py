"""Largest batch and context within a budget: by new traces at other sizes, else by scaling one trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.compiling.dataflow import OPTIMIZER, Dataflow, TracedOperation, base_name
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.max_batch import largest_that
from accelera.trace import Occupancy, Trace

MakeTrace = Callable[[int, int], Trace]
LARGEST = 1 << 24
"""No batch or context above this is looked for."""

_FIXED = {"weight", "optimizer_state"}
_SUMS = {"add", "accumulate"}
_GROWING, _SQUARE = 1, 2


@dataclass(frozen=True)
class BudgetLimit:
    """What fits one budget without moving anything."""

    budget: Figure
    batch: Figure
    """Largest batch at the traced context; 0 when not even one fits, None when unknown or without end."""
    context: Figure
    """Largest context at the traced batch."""
    how: str
    """``traced`` for bisection over new traces, ``scaled`` for the traced one scaled."""


def budget_limits(
    held: Occupancy,
    flow: Dataflow,
    budgets: list[int],
    *,
    batch: int | None,
    context: int | None,
    make_trace: MakeTrace | None,
) -> tuple[BudgetLimit, ...]:
    """Return the largest batch and context per budget.

    Parameters
    ----------
    batch, context
        What the trace was made with; without them only ``make_trace`` can tell, starting from 1.
    make_trace
        From a batch and a context to a trace.
    """
    if make_trace is not None:
        search = _Traced(make_trace, batch or 1, context or 1, context is not None)
        return tuple(search.limit(budget) for budget in budgets)
    scaled = _Scaled.of(held, flow, context)
    return tuple(scaled.limit(budget, batch, context) for budget in budgets)


def _largest(fits: Callable[[int], bool], guess: int) -> int | None:
    """Return the largest number that fits, 0 for none, None from ``LARGEST`` on."""
    found = largest_that(fits, LARGEST, guess)
    return None if found >= LARGEST else found


class _Traced:
    """Peaks of traces made on demand, each once."""

    def __init__(self, make_trace: MakeTrace, batch: int, context: int, has_context: bool) -> None:
        self._make, self._batch, self._context, self._has_context = make_trace, batch, context, has_context
        self._peaks: dict[tuple[int, int], int] = {}

    def limit(self, budget: int) -> BudgetLimit:
        batch = _largest(lambda size: self._peak(size, self._context) <= budget, self._batch)
        context = None
        if self._has_context:
            context = _largest(lambda size: self._peak(self._batch, size) <= budget, self._context)
        return BudgetLimit(Figure(budget, "B"), Figure(batch, ""), Figure(context, ""), "traced")

    def _peak(self, batch: int, context: int) -> int:
        key = batch, context
        if key not in self._peaks:
            self._peaks[key] = Occupancy(self._make(batch, context), evictions=True).peak_bytes
        return self._peaks[key]


@dataclass(frozen=True)
class _Scaled:
    """The replay's curve in three parts: fixed, growing with the batch, and with the context squared."""

    fixed: NDArray[np.float64]
    growing: NDArray[np.float64]
    square: NDArray[np.float64]

    @classmethod
    def of(cls, held: Occupancy, flow: Dataflow, context: int | None) -> _Scaled:
        growth = _growth(held.trace, flow, context)
        return cls(*(held.bytes_of(growth == power).astype(np.float64) for power in range(3)))

    def limit(self, budget: int, batch: int | None, context: int | None) -> BudgetLimit:
        sizes = [
            None if size is None else _largest(self._fits(budget, size, power), size)
            for size, power in ((batch, _GROWING), (context, _SQUARE))
        ]
        return BudgetLimit(Figure(budget, "B"), Figure(sizes[0], ""), Figure(sizes[1], ""), "scaled")

    def _fits(self, budget: int, traced: int, power: int) -> Callable[[int], bool]:
        def fits(size: int) -> bool:
            factor = size / traced
            curve = self.fixed + factor * self.growing + factor**power * self.square
            return bool(curve.max(initial=0) <= budget)

        return fits


def _growth(trace: Trace, flow: Dataflow, context: int | None) -> NDArray[np.int64]:
    """Return per buffer the power of the context that it grows with: 0, 1 or 2."""
    scores = _score_sizes(flow, context)
    powers = np.ones(trace.buffer_count, dtype=np.int64)
    for value in flow.values:
        if value.elements in scores:
            powers[value.buffer] = _SQUARE
    for buffer, (role, name) in enumerate(zip(trace.roles, trace.names, strict=True)):
        if role in _FIXED or name.endswith(".grad") or name.startswith("optimizer."):
            powers[buffer] = 0
    powers[sorted(_of_the_optimizer(flow))] = 0
    return powers


def _of_the_optimizer(flow: Dataflow) -> set[int]:
    """Return the buffers that the optimizer uses, and those that were added up to make one of them."""
    found: set[int] = set()
    for operation in reversed(flow.operations):
        used, made = _buffers(flow, operation)
        if operation.phase == OPTIMIZER or (base_name(operation.op) in _SUMS and not made.isdisjoint(found)):
            found |= used | made
    return found


def _buffers(flow: Dataflow, operation: TracedOperation) -> tuple[set[int], set[int]]:
    """Return the buffers that an operation reads and writes."""
    read, written = ({flow.values[v].buffer for v in side} for side in (operation.reads, operation.writes))
    return read, written


def _score_sizes(flow: Dataflow, context: int | None) -> set[int]:
    """Return the element counts of attention scores, context times context for each head."""
    if context is None or context < 2:
        return set()
    softmaxes = (each for each in flow.operations if base_name(each.op) in {"softmax", "safe_softmax"})
    return {each.outer for each in softmaxes if each.outer and each.outer % context**2 == 0}
