"""Prediction of what a fusing compiler would do to a traced program, and of whether the program fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from accelera.errors import ArgumentError
from accelera.memory import Hierarchy
from accelera.simulator.compiling.budget_fit import SHARES, Baseline, BudgetPlanner, Fitter
from accelera.simulator.compiling.dataflow import Dataflow, dataflow_of
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.fusion import FusedKernel, fuse
from accelera.simulator.compiling.max_batch import BudgetLimit, MakeTrace, budget_limits
from accelera.simulator.compiling.prediction import (
    CompilePrediction,
    Fusion,
    FusionPrediction,
    predict_memory,
)
from accelera.simulator.compiling.timing import predict_time
from accelera.simulator.presets import hierarchy_of
from accelera.trace import Occupancy, Trace
from accelera.units import parse_limit

MOST_LISTED = 20


def predict_trace(
    trace: Trace,
    *,
    hierarchy: Hierarchy | str = "gpu-24gb",
    budgets: Sequence[int | float | str] | None = None,
    optimizer: bool = False,
    batch: int | None = None,
    context: int | None = None,
    make_trace: MakeTrace | None = None,
) -> CompilePrediction:
    """Predict what compiling a traced program would bring, and how it fits memory budgets.

    Parameters
    ----------
    hierarchy
        A machine with an arithmetic speed, or a name of ``HIERARCHIES``.
    budgets
        Sizes such as ``"16GB"`` or bytes, or shares of the peak as ``"60%"`` or 0.6. By default the
        machine's capacity for the verdict, and 100 % to 30 % of the peak for plans.
    optimizer
        Whether the optimizer's step is compiled too.
    batch, context
        What the trace was made with, to scale from.
    make_trace
        From a batch and a context to a trace, to find the largest by bisection.

    Raises
    ------
    UnknownNameError
        No hierarchy has this name.
    ValueError
        An empty trace, a budget that is no size, or a hierarchy that does not say how fast it computes.
    """
    machine = hierarchy_of(hierarchy)
    _require(trace, machine)
    flow, held = dataflow_of(trace), Occupancy(trace, evictions=True)
    memory, kernels = predict_memory(held), fuse(flow, optimizer=optimizer)
    assert machine.compute is not None
    time = predict_time(trace, flow, kernels, machine.compute)
    capacity = machine.tiers[0].capacity_bytes
    sizes = (
        None
        if budgets is None
        else [parse_limit("predict_compile", budget, lambda: held.peak_bytes) for budget in budgets]
    )
    floor = int(memory.hard_floor.value or 0)
    baseline = Baseline.of(trace, machine)
    fitter = Fitter(trace, baseline, held.peak_bytes, floor, time.eager.bound)
    planner = BudgetPlanner(trace, flow, held, baseline)
    shares = [int(share * held.peak_bytes) for share in SHARES]
    verdicts = [capacity] if sizes is None else sizes
    return CompilePrediction(
        model_type=trace.model_type,
        machine=hierarchy if isinstance(hierarchy, str) else machine.tiers[0].name,
        steps=trace.step_count,
        memory=memory,
        fusion=_fusion(flow, held, kernels),
        time=time,
        fits=tuple(fitter.fit(budget) for budget in verdicts),
        limits=_limits(held, flow, verdicts, batch, context, make_trace),
        plans=planner.plans(shares if sizes is None else sizes),
    )


def _require(trace: Trace, machine: Hierarchy) -> None:
    if not trace.access_count:
        raise ArgumentError("[predict_compile] the trace has no accesses; record or generate one that has")
    if machine.compute is None or len(machine) < 2:
        raise ArgumentError(
            "[predict_compile] the hierarchy needs two tiers and a compute speed; give it one, as in "
            "Hierarchy(tiers, Compute(flops_per_s=1e13, bandwidth_bytes_per_s=1e12))"
        )


def _limits(
    held: Occupancy,
    flow: Dataflow,
    budgets: list[int],
    batch: int | None,
    context: int | None,
    make_trace: MakeTrace | None,
) -> tuple[BudgetLimit, ...]:
    if batch is None and context is None and make_trace is None:
        return ()
    return budget_limits(held, flow, budgets, batch=batch, context=context, make_trace=make_trace)


def _fusion(flow: Dataflow, held: Occupancy, kernels: Sequence[FusedKernel]) -> FusionPrediction:
    alike: dict[tuple[tuple[str, ...], str], list[FusedKernel]] = defaultdict(list)
    for each in kernels:
        if len(each.steps) > 1:
            alike[each.ops, each.phase].append(each)
    merged = sorted(alike.values(), key=lambda group: -sum(each.saved_bytes for each in group))
    return FusionPrediction(
        eager_launches=Figure(sum(each.runs for each in flow.operations), ""),
        launches=Figure(sum(each.launches for each in kernels), ""),
        eager_traffic=Figure(sum(each.nbytes for each in flow.operations), "B"),
        traffic=Figure(sum(each.nbytes for each in kernels), "B"),
        peak=Figure(_compiled_peak(flow, held, kernels), "B"),
        fusions=tuple(map(_grouped, merged[:MOST_LISTED])),
    )


def _grouped(kernels: Sequence[FusedKernel]) -> Fusion:
    return Fusion(
        kernels[0].ops,
        kernels[0].phase,
        count=Figure(len(kernels), ""),
        saved_bytes=Figure(sum(each.saved_bytes for each in kernels), "B"),
        saved_launches=Figure(sum(each.saved_launches for each in kernels), ""),
    )


def _compiled_peak(flow: Dataflow, held: Occupancy, kernels: Sequence[FusedKernel]) -> int:
    """Return the peak without the buffers that only ever hold what stays inside a kernel."""
    versions = np.bincount([value.buffer for value in flow.values], minlength=held.trace.buffer_count)
    change = np.zeros(len(held.trace) + 1, dtype=np.int64)
    for index in _inner(kernels):
        value = flow.values[index]
        if versions[value.buffer] == 1:
            change[value.born] -= value.nbytes
            change[value.dies] += value.nbytes
    return int((held.live_bytes + np.cumsum(change)[:-1]).max(initial=0))


def _inner(kernels: Sequence[FusedKernel]) -> Iterator[int]:
    for kernel in kernels:
        yield from kernel.inner
