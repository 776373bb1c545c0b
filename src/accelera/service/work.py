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
from accelera.simulator import Sweep, advise, lower_bound, sweep
from accelera.simulator._internal import bound_curve, capacity_of
from accelera.trace import Trace, read_trace
from accelera.views import MeasuredTrace, fit_view
from accelera.views._internal import curves_view, least_per_unit, timeline_view, ways_view

OnProgress = Callable[[float, str], None]
"""Called with the progress of the work, from 0 to 1, and a text that says what is being done."""
Work = Callable[[Database, Mapping[str, Any], OnProgress], Any]
"""Function that does one kind of job: it returns the result of a request body."""


class DispatchedJob(NamedTuple):
    """A claimed job, as it is sent to a worker process."""

    database_url: str
    worker: str
    claim: Claim
    limits: ServiceLimits


class WorkResult(NamedTuple):
    """Result of a job, as the worker process returns it."""

    result: bytes
    """The result as JSON."""
    summary: Summary | None
    """Entry for the history; None for kinds of jobs that the history does not keep."""


def run_job(job: DispatchedJob) -> WorkResult:
    """Do the work of a job and return its result; progress goes to the database."""
    database = Database(job.database_url, migrate=False, limits=job.limits)
    try:
        claim, queue = job.claim, JobQueue(database)
        work = KINDS[claim.kind]

        def on_progress(progress: float, doing: str) -> None:
            queue.report_progress(claim, job.worker, progress, doing)

        result = work(database, claim.request, on_progress)
        return WorkResult(json_bytes(result), summary_of(claim.kind, claim.request, result))
    except Problem as error:  # a Problem cannot be pickled
        raise ArgumentError(f"[{job.claim.kind}] {error.detail}") from None
    except BudgetExceededError as error:  # nor can this error
        raise ArgumentError(str(error)) from None
    finally:
        database.close()


def trace_of(database: Database, source: Workload | str) -> Trace:
    """Return a stored trace by its digest, or the trace of a workload."""
    if isinstance(source, Workload):
        return source.trace()
    with database.session() as session:
        stored = session.get(StoredTrace, source)
        content = None if stored is None else stored.parquet
    if content is None:
        raise ArgumentError(f"[trace] there is no trace {source}; it may have been deleted")
    with tempfile.TemporaryDirectory(prefix="accelera-trace-") as folder:
        path = Path(folder) / "trace.parquet"
        path.write_bytes(content)
        return read_trace(path)


def _sweep(database: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
    request = SweepRequest.model_validate(body)
    trace = trace_of(database, request.source)
    names = tuple(dict.fromkeys(request.policies or UNSCORED))
    sizes: Any = request.capacities
    if isinstance(sizes, list):
        sizes = [_nonzero_capacity(each, trace) for each in sizes]
    reports = {}
    for number, name in enumerate(names):
        on_progress(number / (len(names) + 1), f"replaying {trace.access_count:,} accesses under {name}")
        found = sweep(trace, [name], sizes, seed=request.seed, progress=False)
        sizes, reports[name] = found.capacities, found.reports[name]
    if request.bound:
        on_progress(len(names) / (len(names) + 1), f"bounding {trace.access_count:,} accesses")
    figures = Sweep(trace, names, found.capacities, reports).to_dict(bound=request.bound)
    return {**figures, "floor_bytes": MeasuredTrace(trace).floor_bytes}


def _nonzero_capacity(text: str, trace: Trace) -> int:
    """Return a capacity in bytes; raises ArgumentError when it is 0."""
    capacity = capacity_of(text, trace)
    if not capacity:
        raise ArgumentError(f"[sweep] the capacity {text!r} is 0 bytes of this trace; give 1 byte or more")
    return capacity


def _bounds(database: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
    request = BoundsRequest.model_validate(body)
    trace = trace_of(database, request.source)
    capacities = [capacity_of(each, trace) for each in request.capacities]
    on_progress(0.1, f"bounding {trace.access_count:,} accesses at {len(capacities)} capacities")
    if len(capacities) == 1:
        return {"capacities": capacities, "lower_bound_bytes": [lower_bound(trace, capacities[0])]}
    found = bound_curve(trace, capacities)
    return {"capacities": capacities, "lower_bound_bytes": found.tolist()}


def _advise(database: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
    request = AdviceRequest.model_validate(body)
    trace = trace_of(database, request.source)
    MeasuredTrace(trace).check_runs("advise", capacity_of(request.capacity, trace))
    on_progress(0.1, f"trying policies on {trace.access_count:,} accesses")
    return advise(trace, request.capacity, request.hierarchy, bound=request.bound).to_dict()


def fit_of(request: FitRequest, facts: MeasuredTrace) -> Any:
    """Return the view of the page Fit: verdict, occupancy and comparison of policies."""
    return fit_view(facts, capacity_of(request.budget, facts.trace), request.what_if(), request.policies)


def least_of(request: FitRequest, facts: MeasuredTrace) -> Any:
    """Return the least bytes that any schedule moves, and the sentence of the verdict that mentions them."""
    budget = capacity_of(request.budget, facts.trace)
    least = least_per_unit(facts, budget)
    found = fit_view(facts, budget, request.what_if(), request.policies, lower_bound_bytes=least)
    return {"least_bytes": least, "per": found.verdict.per, "sentence": found.verdict.sentence}


def ways_of(request: FitRequest, facts: MeasuredTrace) -> Any:
    """Return the changes that make a trace fit, or the room that is left when it fits."""
    source = request.source
    workload = source.model_dump() if isinstance(source, Workload) else None
    return ways_view(facts, capacity_of(request.budget, facts.trace), workload)


def curves_of(request: CurvesRequest, facts: MeasuredTrace) -> Any:
    """Return bytes moved and miss ratios of each policy over the budget."""
    return curves_view(facts, request.policies, request.points, request.what_if(), bound=request.bound)


def timeline_of(request: TimelineRequest, facts: MeasuredTrace) -> Any:
    """Return the timeline of a replay: compute, transfers and occupancy over time."""
    budget = capacity_of(request.budget, facts.trace)
    until = float("inf") if request.end_s is None else request.end_s
    return timeline_view(facts, budget, request.what_if(), request.policy, window=(request.begin_s, until))


def _view_work(request_type: type[ViewRequest], view: Callable[[Any, MeasuredTrace], Any]) -> Work:
    """Return the work function that computes ``view`` of the trace in a request of ``request_type``."""

    def work(database: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
        request = request_type.model_validate(body)
        trace = trace_of(database, request.source)
        on_progress(0.1, f"replaying {trace.access_count:,} accesses")
        return view(request, MeasuredTrace(trace))

    return work


KINDS: Mapping[str, Work] = {
    "sweep": _sweep,
    "bounds": _bounds,
    "advise": _advise,
    "fit": _view_work(FitRequest, fit_of),
    "least": _view_work(FitRequest, least_of),
    "ways": _view_work(FitRequest, ways_of),
    "curves": _view_work(CurvesRequest, curves_of),
    "estimate": estimate_model,
    "plan": plan,
    "capture": capture_model,
    "timeline": _view_work(TimelineRequest, timeline_of),
}
"""Work functions by the name of the kind of job."""
