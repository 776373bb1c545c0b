"""Kinds of work that jobs do, each a function of a trace and a request, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, BudgetExceededError
from accelera.service.database import Database, StoredTrace
from accelera.service.history import Summary, summary_of
from accelera.service.jobs import Claim, JobQueue
from accelera.service.model_work import capture_model, estimate_model, plan
from accelera.service.problems import Problem
from accelera.service.replies import json_bytes
from accelera.service.schemas import (
    UNSCORED,
    AdviceRequest,
    BoundsRequest,
    CurvesRequest,
    FitRequest,
    SweepRequest,
    TimelineRequest,
    ViewRequest,
    Workload,
)
from accelera.service.settings import ServiceLimits
from accelera.simulator import Sweep, advise, bound_curve, lower_bound, sweep
from accelera.simulator.presets import capacity_of
from accelera.trace import Trace, read_trace
from accelera.views import MeasuredTrace, curves_view, fit_view, least_per_unit, timeline_view, ways_view

Tell = Callable[[float, str], None]
"""Receives the progress of the work, from 0 to 1, and what is being done."""
Work = Callable[[Database, Mapping[str, Any], Tell], Any]
"""Makes the result of a request."""


class DispatchedJob(NamedTuple):
    """A claimed job, as it is sent to a process."""

    database_url: str
    worker: str
    claim: Claim
    limits: ServiceLimits


class WorkResult(NamedTuple):
    """What a process found."""

    result: bytes
    """JSON."""
    summary: Summary | None
    """What the history keeps of it."""


def carry_out(assignment: DispatchedJob) -> WorkResult:
    """Do the work of a job and return its result; progress goes to the database."""
    database = Database(assignment.database_url, migrate=False, limits=assignment.limits)
    try:
        claim, queue = assignment.claim, JobQueue(database)
        work = KINDS[claim.kind]

        def tell(progress: float, doing: str) -> None:
            queue.tell(claim, assignment.worker, progress, doing)

        found = work(database, claim.request, tell)
        return WorkResult(json_bytes(found), summary_of(claim.kind, claim.request, found))
    except Problem as refused:  # which does not travel between processes
        raise ArgumentError(f"[{assignment.claim.kind}] {refused.detail}") from None
    except BudgetExceededError as refused:  # nor does this
        raise ArgumentError(str(refused)) from None
    finally:
        database.close()


def trace_of(database: Database, asked: Workload | str) -> Trace:
    """Return a stored trace by its digest, or the trace of a workload."""
    if isinstance(asked, Workload):
        return asked.trace()
    with database.session() as session:
        stored = session.get(StoredTrace, asked)
        content = None if stored is None else stored.parquet
    if content is None:
        raise ArgumentError(f"[trace] there is no trace {asked}; it may have been deleted")
    with tempfile.TemporaryDirectory(prefix="accelera-trace-") as folder:
        path = Path(folder) / "trace.parquet"
        path.write_bytes(content)
        return read_trace(path)


def _sweep(database: Database, request: Mapping[str, Any], tell: Tell) -> Any:
    asked = SweepRequest.model_validate(request)
    trace = trace_of(database, asked.source)
    names = tuple(dict.fromkeys(asked.policies or UNSCORED))
    sizes: Any = asked.capacities
    if isinstance(sizes, list):
        sizes = [_some(each, trace) for each in sizes]
    reports = {}
    for number, name in enumerate(names):
        tell(number / (len(names) + 1), f"replaying {trace.access_count:,} accesses under {name}")
        found = sweep(trace, [name], sizes, seed=asked.seed, progress=False)
        sizes, reports[name] = found.capacities, found.reports[name]
    if asked.bound:
        tell(len(names) / (len(names) + 1), f"bounding {trace.access_count:,} accesses")
    told = Sweep(trace, names, found.capacities, reports).to_dict(bound=asked.bound)
    return {**told, "floor_bytes": MeasuredTrace(trace).floor_bytes}


def _some(given: str, trace: Trace) -> int:
    """Return a capacity in bytes; raises ArgumentError for none."""
    found = capacity_of(given, trace)
    if not found:
        raise ArgumentError(f"[sweep] the capacity {given!r} is 0 bytes of this trace; give 1 byte or more")
    return found


def _bounds(database: Database, request: Mapping[str, Any], tell: Tell) -> Any:
    asked = BoundsRequest.model_validate(request)
    trace = trace_of(database, asked.source)
    capacities = [capacity_of(each, trace) for each in asked.capacities]
    tell(0.1, f"bounding {trace.access_count:,} accesses at {len(capacities)} capacities")
    if len(capacities) == 1:
        return {"capacities": capacities, "lower_bound_bytes": [lower_bound(trace, capacities[0])]}
    found = bound_curve(trace, capacities)
    return {"capacities": capacities, "lower_bound_bytes": found.tolist()}


def _advise(database: Database, request: Mapping[str, Any], tell: Tell) -> Any:
    asked = AdviceRequest.model_validate(request)
    trace = trace_of(database, asked.source)
    MeasuredTrace(trace).check_runs("advise", capacity_of(asked.capacity, trace))
    tell(0.1, f"trying policies on {trace.access_count:,} accesses")
    return advise(trace, asked.capacity, asked.hierarchy, bound=asked.bound).to_dict()


def fit_of(asked: FitRequest, facts: MeasuredTrace) -> Any:
    """Return verdict, occupancy and comparison."""
    return fit_view(facts, capacity_of(asked.budget, facts.trace), asked.what_if(), asked.policies)


def least_of(asked: FitRequest, facts: MeasuredTrace) -> Any:
    """Return the fit with the least bytes that any schedule moves."""
    budget = capacity_of(asked.budget, facts.trace)
    least = least_per_unit(facts, budget)
    found = fit_view(facts, budget, asked.what_if(), asked.policies, least_bytes=least)
    return {"least_bytes": least, "per": found.verdict.per, "sentence": found.verdict.sentence}


def ways_of(asked: FitRequest, facts: MeasuredTrace) -> Any:
    """Return what makes a trace fit, or what else fits."""
    source = asked.source
    workload = source.model_dump() if isinstance(source, Workload) else None
    return ways_view(facts, capacity_of(asked.budget, facts.trace), workload)


def curves_of(asked: CurvesRequest, facts: MeasuredTrace) -> Any:
    """Return figures over the budget."""
    return curves_view(facts, asked.policies, asked.points, asked.what_if(), bound=asked.bound)


def timeline_of(asked: TimelineRequest, facts: MeasuredTrace) -> Any:
    """Return what happens when."""
    budget = capacity_of(asked.budget, facts.trace)
    until = float("inf") if asked.end_s is None else asked.end_s
    return timeline_view(facts, budget, asked.what_if(), asked.policy, window=(asked.begin_s, until))


def _pictured(asked_type: type[ViewRequest], view: Callable[[Any, MeasuredTrace], Any]) -> Work:
    """Return the kind of work that makes a view of a trace."""

    def work(database: Database, request: Mapping[str, Any], tell: Tell) -> Any:
        asked = asked_type.model_validate(request)
        trace = trace_of(database, asked.source)
        tell(0.1, f"replaying {trace.access_count:,} accesses")
        return view(asked, MeasuredTrace(trace))

    return work


KINDS: Mapping[str, Work] = {
    "sweep": _sweep,
    "bounds": _bounds,
    "advise": _advise,
    "fit": _pictured(FitRequest, fit_of),
    "least": _pictured(FitRequest, least_of),
    "ways": _pictured(FitRequest, ways_of),
    "curves": _pictured(CurvesRequest, curves_of),
    "estimate": estimate_model,
    "plan": plan,
    "capture": capture_model,
    "timeline": _pictured(TimelineRequest, timeline_of),
}
"""Kinds by name."""
