"""Synthetic traces: the dataflow of four kinds of model, without running any, and its accesses counted."""

from __future__ import annotations

import math
from dataclasses import asdict
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from accelera.errors import ArgumentError
from accelera.simulator.workloads.layers import MOST_DRAWS
from accelera.simulator.workloads.models import STAGES, Convolutional, LanguageModel, Perceptron
from accelera.simulator.workloads.program import (
    MOST_EXTRA_READS,
    SeededRandom,
    WorkloadProgram,
    WorkloadStep,
    trace_of_program,
)
from accelera.simulator.workloads.request import WorkloadRequest, checked_request
from accelera.trace import Trace

_DIFFERENTIABLE_ROLES = frozenset({"weight", "activation"})
_PRODUCTS = frozenset(
    {"Q", "K", "V", "scores", "context", "output", "up", "down", "router", "expert_up", "expert_down"}
    | {"conv", "logits"}
)
"""Steps whose backward is two products of the forward's size."""


class OptimizerSteps:
    """AdamW: two moments per weight, in float32, updated in place."""

    def __init__(self, program: WorkloadProgram) -> None:
        self._program = program
        self._moments: dict[int, tuple[int, int]] = {}

    def step(self, gradients: dict[int, int]) -> None:
        """Add one update per weight that has a gradient."""
        for weight in sorted(each for each in gradients if self._program.roles[each] == "weight"):
            if weight not in self._moments:
                self._moments[weight] = self._create_moments(weight)
            elements = self._program.sizes[weight] // self._program.item_bytes
            updated = (weight, *self._moments[weight])
            self._program.step("adamw", (gradients[weight], *updated), updated, 12.0 * elements)

    def _create_moments(self, weight: int) -> tuple[int, int]:
        elements = self._program.sizes[weight] // self._program.item_bytes
        name = self._program.names[weight]
        first, second = (
            self._program.persistent(f"{moment}_{name}", elements, "optimizer_state", "float32")
            for moment in ("mean", "variance")
        )
        return first, second


def add_backward(program: WorkloadProgram, forward: list[WorkloadStep], logits: int) -> dict[int, int]:
    """Add the loss and the backward steps of ``forward``; return the gradient of each buffer."""
    gradients = {logits: _loss(program, logits)}
    for step in reversed(forward):
        if step.writes and step.writes[0] in gradients:
            _add_step(program, step, gradients)
    return gradients


def _loss(program: WorkloadProgram, logits: int) -> int:
    elements = program.sizes[logits] // program.item_bytes
    targets = program.temporary("targets", max(1, elements // 1000), "input", "int64")
    loss = program.temporary("loss", 1)
    program.step("cross_entropy", (logits, targets), (loss,), 5.0 * elements)
    gradient = program.temporary("d_logits", elements, "gradient")
    program.step("cross_entropy_backward", (loss, logits, targets), (gradient,), 3.0 * elements)
    return gradient


def _add_step(program: WorkloadProgram, step: WorkloadStep, gradients: dict[int, int]) -> None:
    """Add the backward step of one forward step, and the sums where a gradient has two sources."""
    arriving = gradients[step.writes[0]]
    learning = [each for each in dict.fromkeys(step.reads) if program.roles[each] in _DIFFERENTIABLE_ROLES]
    if step.op == "add":
        parts = dict.fromkeys(learning, arriving)
    else:
        parts = {each: _gradient(program, each) for each in learning}
        saved = step.reads if step.saved == "inputs" else step.writes if step.saved == "outputs" else ()
        flops = step.flops * (2 if step.op in _PRODUCTS else 1)
        program.step(f"{step.op}_backward", (arriving, *saved), tuple(parts.values()), flops)
    for buffer, part in parts.items():
        earlier = gradients.get(buffer)
        gradients[buffer] = part if earlier is None else _sum(program, buffer, earlier, part)


def _gradient(program: WorkloadProgram, buffer: int) -> int:
    elements = program.sizes[buffer] // program.item_bytes
    return program.temporary(
        f"d{len(program.steps)}_{program.names[buffer].split('@')[0]}", elements, "gradient"
    )


def _sum(program: WorkloadProgram, buffer: int, earlier: int, part: int) -> int:
    made = _gradient(program, buffer)
    program.step("accumulate", (earlier, part), (made,), float(program.sizes[buffer] // program.item_bytes))
    return made


Model = LanguageModel | Convolutional | Perceptron
_MODELS: dict[str, type[LanguageModel] | type[Convolutional] | type[Perceptron]] = {
    "Transformer": LanguageModel,
    "CNN": Convolutional,
    "MLP": Perceptron,
    "MoE": LanguageModel,
}
WORKLOADS = tuple(_MODELS)
"""Models that ``generate_synthetic_trace`` knows."""


def generate_synthetic_trace(
    model_type: str = "Transformer",
    num_layers: int = 12,
    batch_size: int = 32,
    seq_length: int = 128,
    reuse_probability: float = 0.3,
    *,
    seed: int = 0,
    mode: str = "inference",
    steps: int | None = None,
    hidden_size: int | None = None,
    dtype: str = "float32",
    experts: int = 8,
    top_k: int = 2,
    block_tokens: int = 16,
) -> Trace:
    """Return the trace of a model of the given shape.

    The same arguments give the same trace on every machine. Sizes and floating-point operations follow
    from the shape; buffers are freed after their last access, weights, optimizer state and the last
    result are not.

    Parameters
    ----------
    model_type
        ``"Transformer"``, ``"CNN"``, ``"MLP"`` or ``"MoE"``, in any case.
    num_layers
        Layers, or residual blocks of a CNN.
    batch_size, seq_length
        Sequences and tokens in each; for a CNN images and their edge in pixels, for an MLP
        ``batch_size * seq_length`` rows. In decoding ``seq_length`` is the length of the prompt.
    reuse_probability
        Chance that a forward step reads, besides its operands, a buffer that the same iteration used
        before (a skip connection, a tied weight); each step has two chances. What was used more often is
        likelier to be used again, and what is read again lives until then.
    seed
        Of the further reads and of the experts' routing.
    mode
        ``"inference"``: forward passes. ``"training"``: forward, backward and an AdamW update.
        ``"decode"``: the prompt, then token by token with a key-value cache that grows by blocks
        (Transformer and MoE).
    steps
        Batches, optimizer steps or tokens; 1, 2 or 32 when absent.
    hidden_size
        Width; 768 (Transformer, MoE), 512 (CNN) or 1024 (MLP) when absent.
    dtype
        Of weights and activations: float64, float32, float16 or bfloat16. Optimizer state is float32.
    experts, top_k
        Experts per layer of an MoE, and how many of them each token goes to. Loads follow Zipf's law.
    block_tokens
        Tokens per block of the key-value cache.

    Raises
    ------
    UnknownNameError
        No such model or mode.
    DTypeError
        No such element type.
    ValueError, TypeError
        A count below 1, a probability outside [0, 1], decoding with a CNN or an MLP; over 10 million
        accesses or weights, or over 2**62 bytes. All of it is said before anything long begins.

    >>> generate_synthetic_trace("Transformer", num_layers=12, batch_size=32, seq_length=128)
    Trace(Transformer, 580 accesses of 270 buffers in 171 steps)
    """
    request = checked_request(
        model_type,
        reuse_probability,
        mode,
        num_layers=num_layers,
        batch_size=batch_size,
        seq_length=seq_length,
        seed=seed,
        steps=steps,
        hidden_size=hidden_size,
        dtype=dtype,
        experts=experts,
        top_k=top_k,
        block_tokens=block_tokens,
    )
    require_moderate(request)
    return _generate(request)


def expected_accesses(*shape: Any, **more: Any) -> int:
    """Return how many accesses ``generate_synthetic_trace`` of the same arguments makes, from above.

    Takes no time and no memory, whatever is asked. Less than twice the count for ordinary requests.

    Raises what ``generate_synthetic_trace`` raises for arguments that cannot be meant.

    Parameters
    ----------
    shape, more
        The arguments of ``generate_synthetic_trace``.

    Examples
    --------
    >>> expected_accesses("Transformer", num_layers=12, batch_size=32, seq_length=128)
    653
    """
    asked = signature(generate_synthetic_trace).bind(*shape, **more)
    asked.apply_defaults()
    return expected_of(checked_request(**asked.arguments))


def _generate(request: WorkloadRequest) -> Trace:
    random = SeededRandom(request.seed)
    program = WorkloadProgram(request.item_bytes, request.dtype, request.reuse_probability, random)
    model = _MODELS[request.model_type](program, request, random)
    if request.mode == "training":
        results = _train(program, model, request.steps)
    elif isinstance(model, LanguageModel) and request.mode == "decode":
        results = _decode(program, model, request)
    else:
        results = _infer(program, model, request.steps)
    facts = {key: value for key, value in asdict(request).items() if key != "model_type"}
    return trace_of_program(program, results, model_type=request.model_type, meta={"workload": facts})


def _infer(program: WorkloadProgram, model: Model, batches: int) -> tuple[int, ...]:
    results = []
    for _ in range(batches):
        program.begin_iteration()
        results.append(model.forward())
    return tuple(results)


def _train(program: WorkloadProgram, model: Model, steps: int) -> tuple[int, ...]:
    optimizer = OptimizerSteps(program)
    for _ in range(steps):
        program.begin_iteration()
        begin = len(program.steps)
        logits = model.forward()
        gradients = add_backward(program, program.steps[begin:], logits)
        optimizer.step(gradients)
    return ()


def _decode(program: WorkloadProgram, model: LanguageModel, request: WorkloadRequest) -> tuple[int, ...]:
    program.begin_iteration()
    logits = model.decode(request.seq_length, 0)
    for token in range(request.steps):
        program.begin_iteration()
        logits = model.decode(1, request.seq_length + token)
    return (logits,)


MOST_ACCESSES = 10_000_000
"""Most accesses, and most weights, of a trace: some 4 GB and a minute or two."""
_LOG_CONFIDENCE = math.log(1e9)
"""Upper bounds of random counts are exceeded in at most one of 1e9 cases."""
_MANY_EXPERTS = 65_536


class _AccessCounts(NamedTuple):
    """Accesses of a part of a model in one iteration, counted in the programs that the models build."""

    forward: float
    """Accesses of its forward steps."""
    steps: float
    """Number of its forward steps; each may read ``MOST_EXTRA_READS`` further buffers."""
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


def expected_of(request: WorkloadRequest) -> int:
    """Return how many accesses the trace of ``request`` has, from above.

    Random counts (further reads, experts with work) are bounded so that fewer than one of 1e9 requests has
    more. For ordinary requests the bound is less than twice the count.
    """
    iterations, total = _decoding(request) if request.mode == "decode" else _passes(request)
    certain = total.forward + (total.training if request.mode == "training" else 0.0)
    extra_reads = MOST_EXTRA_READS * (total.steps - iterations)
    p = request.reuse_probability
    return math.ceil(certain + _upper_bound(extra_reads * p, extra_reads * p * (1 - p), extra_reads))


def weights_of(request: WorkloadRequest) -> int:
    """Return a lower bound of the number of buffers made before the first step."""
    per_layer = 2 * request.experts if request.model_type == "MoE" else 2
    return per_layer * request.num_layers


def require_moderate(request: WorkloadRequest) -> None:
    """Raise ValueError where the trace of ``request`` would exceed ``MOST_ACCESSES``; nothing is made."""
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
    raise ArgumentError(
        f"[workload] {asked} in mode={request.mode!r} would make up to {count:,} {what}; at most "
        f"{MOST_ACCESSES:,} are made. Take {fewer}"
    )


def _passes(request: WorkloadRequest) -> tuple[int, _AccessCounts]:
    """Return the number of iterations, and the counts of all of them together."""
    layers = request.num_layers
    if request.model_type == "CNN":
        once = _BLOCK.times(layers).plus(_SHORTCUT.times(min(layers, STAGES) - 1), _CNN_ENDS)
        return request.steps, once.times(request.steps)
    if request.model_type == "MLP":
        return request.steps, _FEED_FORWARD.times(layers).plus(_MLP_ENDS).times(request.steps)
    once = _ATTENTION.times(layers).plus(_LANGUAGE_ENDS)
    return request.steps, once.times(request.steps).plus(
        _feed_forward_counts(request, request.rows, request.steps)
    )


def _decoding(request: WorkloadRequest) -> tuple[int, _AccessCounts]:
    iterations = request.steps + 1
    once = _CACHED_ATTENTION.times(request.num_layers).plus(_LANGUAGE_ENDS)
    return iterations, once.times(iterations).plus(
        _AccessCounts(request.num_layers * _cache_accesses(request), 0, 0),
        _feed_forward_counts(request, request.rows, 1),
        _feed_forward_counts(request, request.batch_size, request.steps),
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


def _feed_forward_counts(request: WorkloadRequest, rows: int, passes: int) -> _AccessCounts:
    """Return the counts of all feed-forward or MoE layers, in ``passes`` over ``rows`` tokens each."""
    count = request.num_layers * passes
    if request.model_type != "MoE":
        return _FEED_FORWARD.times(count)
    return _ROUTER.times(count).plus(
        _EXPERT.times(_active_experts(request.experts, rows * request.top_k, count))
    )


def _active_experts(experts: int, assignments: int, layers: int) -> float:
    """Return an upper bound of the number of experts with work, in all ``layers`` together."""
    draws = min(assignments, MOST_DRAWS)
    most = min(experts, draws)
    if experts > _MANY_EXPERTS:
        return most * layers
    shares = 1.0 / np.arange(1, experts + 1)
    working = 1 - (1 - shares / shares.sum()) ** draws
    variance = float((working * (1 - working)).sum())
    return _upper_bound(layers * float(working.sum()), layers * variance, most * layers)


def _upper_bound(mean: float, variance: float, most: float) -> float:
    """Return a bound that a sum of independent Bernoulli draws hardly ever exceeds (Bernstein)."""
    spread = _LOG_CONFIDENCE / 3 + math.sqrt(_LOG_CONFIDENCE**2 / 9 + 2 * _LOG_CONFIDENCE * variance)
    return min(most, mean + spread) if mean else 0.0
