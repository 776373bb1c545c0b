"""The seed's endpoints: simulate, score, validate, generate and compile a synthetic workload.

Source: seed 003. Each takes the same description of a model and a seed for its dice, so that all answers
are about one trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from accelera.memory import Hierarchy
from accelera.service.problems import documented, too_large
from accelera.service.replies import ReplyCache, json_bytes
from accelera.service.schemas import (
    CompilationRequest,
    Json,
    PolicyName,
    ScoringRequest,
    SimulationRequest,
    Workload,
)
from accelera.service.settings import ServiceSettings
from accelera.simulator import gated, hierarchy_of, simulate, validate_trace
from accelera.simulator.compiling import predict_source, predict_trace
from accelera.simulator.presets import capacity_of
from accelera.simulator.scorers import unit_scores
from accelera.trace import Kind, Trace, stack_distances
from accelera.trace.dataframe import MIB, tensor_ids
from accelera.trace.reuse import FIRST

_KINDS = {int(Kind.READ): "read", int(Kind.WRITE): "write"}


def columns_of(trace: Trace, scores: NDArray[np.float64] | None = None) -> dict[str, list[Any]]:
    """Return the seed's columns, one value per access; events that are none, such as frees, are left out.

    ``reuse_distance`` counts distinct other tensors since the last use, and is null for a first use;
    ``size_mb`` is of 2**20 bytes.
    """
    accesses = trace.is_access
    buffers, steps = trace.buffer[accesses], trace.step[accesses]
    sizes = trace.size_bytes[buffers]
    distances = stack_distances(trace).buffers
    columns: dict[str, list[Any]] = {
        "tensor_id": tensor_ids(trace.names)[buffers].tolist(),
        "size_mb": (sizes / MIB).tolist(),
        "reuse_distance": [None if one == FIRST else one for one in distances.tolist()],
        "stride": trace.stride[accesses].tolist(),
        "op": np.asarray(trace.ops, object)[steps].tolist(),
        "model_type": [trace.model_type] * len(buffers),
        "kind": [_KINDS[one] for one in trace.kind[accesses].tolist()],
        "step": steps.tolist(),
        "size_bytes": sizes.tolist(),
        "role": np.asarray(trace.roles, object)[buffers].tolist(),
    }
    if scores is not None:
        columns["eviction_score"] = [None if not np.isfinite(one) else one for one in scores.tolist()]
    return columns


def rows_of(trace: Trace, scores: NDArray[np.float64] | None = None) -> list[dict[str, Any]]:
    """Return ``columns_of`` as one object per access."""
    columns = columns_of(trace, scores)
    names = tuple(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


Shape = Annotated[
    Literal["rows", "columns", "none"],
    Query(description="the trace as one object per access, as columns, or left out"),
]
Policy = Annotated[PolicyName, Query(description="who is evicted; ML follows the eviction scores")]

_QUICK = 10_000
"""Accesses, by the estimate from above, of a trace that is replayed in the event loop."""
_QUICK_SOURCE = 5_000
"""Characters of a source text that is read there."""

router = APIRouter(tags=["simulation"], responses=documented(401, 413, 422, 500))


@router.post("/simulate", summary="Run a model's tensor accesses through a memory hierarchy")
async def simulate_workload(
    request: Request, asked: SimulationRequest, policy: Policy = "lru", trace: Shape = "rows"
) -> Response:
    """Return the seed's metrics, the trace with eviction scores, and the validation when asked."""

    def made() -> Json:
        found = _trace_of(request, asked)
        scores = unit_scores(found, asked.scorer)
        guiding = scores if policy.lower() in ("ml", "scored", "learned") else None
        report = simulate(
            found, _machine(asked, found), policy, lookahead=asked.lookahead, score=guiding, seed=asked.seed
        )
        figures = report.to_dict()
        answer: Json = {**report.as_seed_metrics(), "policy": figures["policy"], "figures": figures}
        if guiding is not None:
            answer["gate"] = _gate(asked, found, guiding)
        if trace != "none":
            answer["trace"] = _shaped(found, trace, scores)
        if asked.validate_trace:
            answer["validation"] = validate_trace(found).to_dict()
        return answer

    return await _replied(request, asked, ("simulate", policy, trace), made)


@router.post("/predict-schedule", summary="Score a model's tensors: the highest is to leave first")
async def predict_schedule(request: Request, asked: ScoringRequest, trace: Shape = "rows") -> Response:
    """Return the trace with eviction scores from 0 (keep) to 1 (evict first), and whether to follow them."""

    def made() -> Json:
        found = _trace_of(request, asked)
        scores = unit_scores(found, asked.scorer)
        gate = _gate(asked, found, scores)
        return {"scorer": asked.scorer, "gate": gate, "trace": _shaped(found, trace, scores)}

    return await _replied(request, asked, ("schedule", trace), made)


@router.post("/validate-trace", summary="Describe a model's reuse, locality and sizes")
async def validate_workload(request: Request, asked: Workload) -> Response:
    """Return the figures and what they mean."""
    return await _replied(
        request, asked, ("validate",), lambda: validate_trace(_trace_of(request, asked)).to_dict()
    )


@router.post("/generate-trace", summary="Make the trace of a model of a given shape")
async def generate_trace(request: Request, asked: Workload, trace: Shape = "rows") -> Response:
    """Return the accesses in order, and what the trace holds."""

    def made() -> Json:
        found = _trace_of(request, asked)
        summary = {
            "model_type": found.model_type,
            "accesses": found.access_count,
            "buffers": found.buffer_count,
            "steps": found.step_count,
            "footprint_bytes": found.footprint_bytes,
        }
        return {**summary, "trace": _shaped(found, trace, None)}

    return await _replied(request, asked, ("generate", trace), made)


@router.post("/predict-compile", summary="Predict what compiling a model or a source text would bring")
async def predict_compile(request: Request, asked: CompilationRequest) -> Response:
    """Return kernels, traffic, time and memory of a model; of a source text, what optimising it brings."""

    def made() -> Json:
        if asked.source is not None:
            return _of_source(asked.source, asked)
        found = _trace_of(request, asked)
        prediction = predict_trace(found, hierarchy=asked.hierarchy, optimizer=asked.optimizer)
        return prediction.to_dict()

    return await _replied(request, asked, ("compile",), made, quick=len(asked.source or "") <= _QUICK_SOURCE)


async def _replied(
    request: Request, asked: Workload, key: tuple[str, ...], made: Callable[[], Json], *, quick: bool = True
) -> Response:
    """Reply from the cache or between two turns of the event loop; in a thread what takes longer."""
    cache: ReplyCache = request.app.state.replies
    whole = (*key, asked.model_dump_json())
    if cache.holds(whole) or (quick and asked.expected_accesses() <= _QUICK):
        return cache.reply(whole, made)
    async with request.app.state.slow:
        return cache.keep(whole, await asyncio.to_thread(lambda: json_bytes(made())))


def _of_source(source: str, asked: CompilationRequest) -> Json:
    try:
        return predict_source(
            source, opt_level=asked.opt_level, language=asked.language, model_type=asked.model_type
        ).to_dict()
    except (SyntaxError, RecursionError, MemoryError) as error:  # the parser's own limits
        raise ValueError(f"[predict-compile] the source is no {asked.language}: {error}") from error


def _trace_of(request: Request, asked: Workload) -> Trace:
    settings: ServiceSettings = request.app.state.settings
    limit = settings.limits.accesses
    expected = asked.expected_accesses()
    if expected > limit:
        raise too_large("accesses of the trace", expected, limit, "take fewer layers, steps or experts")
    return asked.trace()


def _machine(asked: ScoringRequest, trace: Trace) -> Hierarchy:
    machine = hierarchy_of(asked.hierarchy)
    return machine if asked.capacity is None else machine.with_capacity(capacity_of(asked.capacity, trace))


def _gate(asked: ScoringRequest, trace: Trace, scores: NDArray[np.float64]) -> Json:
    """Return whether following the scores moves fewer bytes than plain policies on the machine."""
    machine = _machine(asked, trace)
    return gated(trace, scores, machine, lookahead=asked.lookahead, name=asked.scorer).to_dict()


def _shaped(trace: Trace, shape: str, scores: NDArray[np.float64] | None) -> Any:
    if shape == "none":
        return None
    return rows_of(trace, scores) if shape == "rows" else columns_of(trace, scores)
