"""Expected number of accesses of a synthetic trace, from its request alone, before anything is made."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from accelera.simulator.workloads.layers import DRAWS
from accelera.simulator.workloads.program import CHANCES
from accelera.simulator.workloads.request import WorkloadRequest

MOST_ACCESSES = 10_000_000
"""Accesses, and weights, of the largest trace that is made: some 4 GB and a minute or two."""
_SURE = math.log(1e9)
"""A bound of what is left to chance is exceeded in one of 1e9 cases at most."""
_MANY_EXPERTS = 65_536


class _AccessCounts(NamedTuple):
    """A part of a model in one iteration, counted in the dataflow that the models put on the tape."""

    forward: float
    """Accesses of its forward steps."""
    steps: float
    """Its forward steps; each may read ``CHANCES`` further buffers."""
    training: float
    """Accesses of its backward steps, of sums of gradients and of its weights' updates."""

    def times(self, count: float) -> _AccessCounts:
        return _AccessCounts(*(count * each for each in self))

    def plus(self, *others: _AccessCounts) -> _AccessCounts:
        return _AccessCounts(*(sum(column) for column in zip(self, *others, strict=True)))


_ATTENTION = _AccessCounts(26, 9, 82)
_CACHED_ATTENTION = _AccessCounts(26, 11, 0)
"""Without its blocks of the key-value cache."""
_FEED_FORWARD = _AccessCounts(14, 5, 42)
_ROUTER = _AccessCounts(11, 4, 30)
_EXPERT = _AccessCounts(12, 4, 40)
"""An expert that has work."""
_LANGUAGE_ENDS = _AccessCounts(9, 3, 38)
_BLOCK = _AccessCounts(19, 7, 57)
_SHORTCUT = _AccessCounts(6, 2, 24)
_CNN_ENDS = _AccessCounts(11, 4, 45)
_MLP_ENDS = _AccessCounts(3, 1, 15)
_STAGES = 4


def expected_of(request: WorkloadRequest) -> int:
    """Return how many accesses the trace of ``request`` has, from above.

    What chance decides, further reads and experts with work, is bounded so that fewer than one of 1e9
    requests has more. Of ordinary requests the bound is less than twice the count.
    """
    iterations, total = _decoding(request) if request.mode == "decode" else _passes(request)
    certain = total.forward + (total.training if request.mode == "training" else 0.0)
    chances = CHANCES * (total.steps - iterations)
    p = request.reuse_probability
    return math.ceil(certain + _surely(chances * p, chances * p * (1 - p), chances))


def weights_of(request: WorkloadRequest) -> int:
    """Return at least how many buffers are made before the first step."""
    per_layer = 2 * request.experts if request.model_type == "MoE" else 2
    return per_layer * request.num_layers


def require_moderate(request: WorkloadRequest) -> None:
    """Raise ValueError where the trace of ``request`` would be absurdly long; nothing is made."""
    weights = weights_of(request)
    count, what = (weights, "weights") if weights > MOST_ACCESSES else (expected_of(request), "accesses")
    if count <= MOST_ACCESSES:
        return
    shape = {
        "num_layers": request.num_layers,
        "steps": request.steps,
        **({"experts": request.experts} if request.model_type == "MoE" else {}),
        **({"seq_length": request.seq_length} if request.mode == "decode" else {}),
    }
    asked = ", ".join(f"{name}={value}" for name, value in shape.items())
    fewer = "fewer num_layers, steps or experts" + (
        ", or larger block_tokens" if request.mode == "decode" else ""
    )
    raise ValueError(
        f"[workload] {asked} in mode={request.mode!r} would make up to {count:,} {what}; at most "
        f"{MOST_ACCESSES:,} are made. Take {fewer}"
    )


def _passes(request: WorkloadRequest) -> tuple[int, _AccessCounts]:
    """Return the iterations, and what all of them come to."""
    layers = request.num_layers
    if request.model_type == "CNN":
        once = _BLOCK.times(layers).plus(_SHORTCUT.times(min(layers, _STAGES) - 1), _CNN_ENDS)
        return request.steps, once.times(request.steps)
    if request.model_type == "MLP":
        return request.steps, _FEED_FORWARD.times(layers).plus(_MLP_ENDS).times(request.steps)
    once = _ATTENTION.times(layers).plus(_LANGUAGE_ENDS)
    return request.steps, once.times(request.steps).plus(_second_halves(request, request.rows, request.steps))


def _decoding(request: WorkloadRequest) -> tuple[int, _AccessCounts]:
    iterations = request.steps + 1
    once = _CACHED_ATTENTION.times(request.num_layers).plus(_LANGUAGE_ENDS)
    return iterations, once.times(iterations).plus(
        _AccessCounts(request.num_layers * _cache_accesses(request), 0, 0),
        _second_halves(request, request.rows, 1),
        _second_halves(request, request.batch_size, request.steps),
    )


def _cache_accesses(request: WorkloadRequest) -> int:
    """Return the accesses of one layer's blocks of keys and values, over the prompt and all tokens."""
    size, prompt, tokens = request.block_tokens, request.seq_length, request.steps
    last = prompt + tokens
    read = _blocks(prompt, size) + _summed_blocks(last, size) - _summed_blocks(prompt, size)
    made = _blocks(last, size)
    whole = _blocks(last, size) - _blocks(prompt, size)
    return 2 * read + 2 * made + 4 * (tokens - whole)


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _summed_blocks(tokens: int, size: int) -> int:
    """Return the sum of ``_blocks(i)`` for i = 1 .. ``tokens``."""
    full, rest = divmod(tokens, size)
    return size * full * (full + 1) // 2 + rest * (full + 1)


def _second_halves(request: WorkloadRequest, rows: int, passes: int) -> _AccessCounts:
    """Return what all layers' second halves come to in passes over ``rows`` tokens each."""
    count = request.num_layers * passes
    if request.model_type != "MoE":
        return _FEED_FORWARD.times(count)
    return _ROUTER.times(count).plus(_EXPERT.times(_working(request.experts, rows * request.top_k, count)))


def _working(experts: int, assignments: int, layers: int) -> float:
    """Return how many experts of all ``layers`` together have work, from above."""
    draws = min(assignments, DRAWS)
    most = min(experts, draws)
    if experts > _MANY_EXPERTS:
        return most * layers
    shares = 1.0 / np.arange(1, experts + 1)
    working = 1 - (1 - shares / shares.sum()) ** draws
    variance = float((working * (1 - working)).sum())
    return _surely(layers * float(working.sum()), layers * variance, most * layers)


def _surely(mean: float, variance: float, most: float) -> float:
    """Return what a sum of independent yes-or-no draws exceeds hardly ever (Bernstein's inequality)."""
    spread = _SURE / 3 + math.sqrt(_SURE**2 / 9 + 2 * _SURE * variance)
    return min(most, mean + spread) if mean else 0.0
