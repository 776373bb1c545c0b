"""The seed's endpoints: simulate, score, validate, generate and compile a synthetic workload.

Source: seed 003. Each takes the same description of a model and a seed for random numbers, so that all
replies are about one trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from accelera.errors import ArgumentError
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
from accelera.simulator import gated, simulate, validate_trace
from accelera.simulator._internal import capacity_of, hierarchy_of, predict_source, predict_trace, unit_scores
from accelera.trace import Kind, Trace
from accelera.trace._internal import FIRST, MIB, stack_distances, tensor_ids

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

_INLINE_ACCESSES = 10_000
"""Most accesses, by ``expected_accesses``, of a trace that is replayed in the event loop itself."""
_INLINE_CHARACTERS = 5_000
"""Most characters of a source text that is parsed in the event loop itself."""

router = APIRouter(tags=["simulation"], responses=documented(401, 413, 422, 500))


@router.post("/simulate", summary="Run a model's tensor accesses through a memory hierarchy")
async def simulate_workload(
    request: Request, body: SimulationRequest, policy: Policy = "lru", trace: Shape = "rows"
) -> Response:
    """Return the seed's metrics, the trace with eviction scores, and the validation when asked."""

    def compute() -> Json:
        found = _trace_of(request, body)
        scores = unit_scores(found, body.scorer)
        guiding = scores if policy.lower() in ("ml", "scored", "learned") else None
        report = simulate(
            found, _machine(body, found), policy, lookahead=body.lookahead, score=guiding, seed=body.seed
        )
        figures = report.to_dict()
        answer: Json = {**report.as_seed_metrics(), "policy": figures["policy"], "figures": figures}
        if guiding is not None:
            answer["gate"] = _gate(body, found, guiding)
        if trace != "none":
            answer["trace"] = _trace_json(found, trace, scores)
        if body.validate_trace:
            answer["validation"] = validate_trace(found).to_dict()
        return answer

    return await _cached_reply(request, body, ("simulate", policy, trace), compute)


@router.post("/predict-schedule", summary="Score a model's tensors: the highest is to leave first")
async def predict_schedule(request: Request, body: ScoringRequest, trace: Shape = "rows") -> Response:
    """Return the trace with eviction scores from 0 (keep) to 1 (evict first), and whether to follow them."""

    def compute() -> Json:
        found = _trace_of(request, body)
        scores = unit_scores(found, body.scorer)
        gate = _gate(body, found, scores)
        return {"scorer": body.scorer, "gate": gate, "trace": _trace_json(found, trace, scores)}

    return await _cached_reply(request, body, ("schedule", trace), compute)


@router.post("/validate-trace", summary="Describe a model's reuse, locality and sizes")
async def validate_workload(request: Request, body: Workload) -> Response:
    """Return the figures and what they mean."""
    return await _cached_reply(
        request, body, ("validate",), lambda: validate_trace(_trace_of(request, body)).to_dict()
    )


@router.post("/generate-trace", summary="Make the trace of a model of a given shape")
async def generate_trace(request: Request, body: Workload, trace: Shape = "rows") -> Response:
    """Return the accesses in order, and what the trace holds."""

    def compute() -> Json:
        found = _trace_of(request, body)
        summary = {
            "model_type": found.model_type,
            "accesses": found.access_count,
            "buffers": found.buffer_count,
            "steps": found.step_count,
            "footprint_bytes": found.footprint_bytes,
        }
        return {**summary, "trace": _trace_json(found, trace, None)}

    return await _cached_reply(request, body, ("generate", trace), compute)


@router.post("/predict-compile", summary="Predict what compiling a model or a source text would bring")
async def predict_compile(request: Request, body: CompilationRequest) -> Response:
    """Return kernels, traffic, time and memory of a model; of a source text, what optimising it brings."""

    def compute() -> Json:
        if body.source is not None:
            return _compile_source(body.source, body)
        found = _trace_of(request, body)
        prediction = predict_trace(found, hierarchy=body.hierarchy, optimizer=body.optimizer)
        return prediction.to_dict()

    return await _cached_reply(
        request, body, ("compile",), compute, is_quick=len(body.source or "") <= _INLINE_CHARACTERS
    )


async def _cached_reply(
    request: Request,
    body: Workload,
    key: tuple[str, ...],
    compute: Callable[[], Json],
    *,
    is_quick: bool = True,
) -> Response:
    """Reply from the cache, else compute: a short trace in the event loop, any other in a thread."""
    cache: ReplyCache = request.app.state.replies
    full_key = (*key, body.model_dump_json())
    if cache.holds(full_key) or (is_quick and body.expected_accesses() <= _INLINE_ACCESSES):
        return cache.reply(full_key, compute)
    async with request.app.state.slow:
        return cache.keep(full_key, await asyncio.to_thread(lambda: json_bytes(compute())))


def _compile_source(source: str, body: CompilationRequest) -> Json:
    try:
        return predict_source(
            source, opt_level=body.opt_level, language=body.language, model_type=body.model_type
        ).to_dict()
    except (SyntaxError, RecursionError, MemoryError) as error:  # the parser's own limits
        raise ArgumentError(f"[predict-compile] the source is no {body.language}: {error}") from error


def _trace_of(request: Request, body: Workload) -> Trace:
    settings: ServiceSettings = request.app.state.settings
    limit = settings.limits.accesses
    expected = body.expected_accesses()
    if expected > limit:
        raise too_large("accesses of the trace", expected, limit, "take fewer layers, steps or experts")
    return body.trace()


def _machine(body: ScoringRequest, trace: Trace) -> Hierarchy:
    machine = hierarchy_of(body.hierarchy)
    return machine if body.capacity is None else machine.with_capacity(capacity_of(body.capacity, trace))


def _gate(body: ScoringRequest, trace: Trace, scores: NDArray[np.float64]) -> Json:
    """Return whether following the scores moves fewer bytes than plain policies on the machine."""
    machine = _machine(body, trace)
    return gated(trace, scores, machine, lookahead=body.lookahead, name=body.scorer).to_dict()


def _trace_json(trace: Trace, shape: str, scores: NDArray[np.float64] | None) -> Any:
    if shape == "none":
        return None
    return rows_of(trace, scores) if shape == "rows" else columns_of(trace, scores)
