"""Layers that several models share: linear, norm, feed-forward, attention, mixture of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.workloads.program import SeededRandom, WorkloadProgram
from accelera.simulator.workloads.request import WorkloadRequest

FFN_FACTOR = 4


class LinearLayer:
    """x (rows, inputs) @ W (inputs, outputs), without a bias."""

    def __init__(self, program: WorkloadProgram, name: str, inputs: int, outputs: int) -> None:
        self._program = program
        self._inputs = inputs
        self._outputs = outputs
        self._weight = program.persistent(f"W_{name}", inputs * outputs)

    def __call__(self, op: str, x: int, name: str, rows: int) -> int:
        """Return the buffer of the result, shape (rows, outputs)."""
        flops = 2.0 * rows * self._inputs * self._outputs
        return self._program.forward(op, (x, self._weight), name, rows * self._outputs, flops=flops)


class NormLayer:
    """Layer normalisation with a scale of ``width`` elements."""

    def __init__(self, program: WorkloadProgram, name: str, width: int) -> None:
        self._program = program
        self._width = width
        self._scale = program.persistent(f"scale_{name}", width)

    def __call__(self, x: int, name: str, rows: int) -> int:
        """Return the buffer of the result, shape (rows, width)."""
        elements = rows * self._width
        return self._program.forward("norm", (x, self._scale), name, elements, flops=5.0 * elements)


class FeedForwardLayer:
    """norm, up, gelu, down, add: (rows, width) to (rows, width)."""

    def __init__(self, program: WorkloadProgram, layer: str, width: int) -> None:
        self._program = program
        self._layer = layer
        self._width = width
        self._norm = NormLayer(program, f"ffn_{layer}", width)
        self._up = LinearLayer(program, f"up_{layer}", width, FFN_FACTOR * width)
        self._down = LinearLayer(program, f"down_{layer}", FFN_FACTOR * width, width)

    def __call__(self, x: int, rows: int) -> int:
        """Return the buffer of the result, shape (rows, width)."""
        layer, inner = self._layer, rows * FFN_FACTOR * self._width
        normed = self._norm(x, f"ffn_norm_{layer}", rows)
        up = self._up("up", normed, f"up_{layer}", rows)
        active = self._program.forward("gelu", (up,), f"gelu_{layer}", inner, flops=8.0 * inner)
        down = self._down("down", active, f"down_{layer}", rows)
        return self._program.forward("add", (x, down), f"hidden_{layer}", rows * self._width, saved="nothing")


class AttentionLayer:
    """norm, Q, K, V, scores, softmax, context, output, add."""

    def __init__(self, program: WorkloadProgram, layer: str, request: WorkloadRequest) -> None:
        width = request.hidden_size
        self._program = program
        self._layer = layer
        self._request = request
        self._norm = NormLayer(program, f"attention_{layer}", width)
        self._inputs = [
            (name, LinearLayer(program, f"{name}_{layer}", width, width)) for name in ("Q", "K", "V")
        ]
        self._output = LinearLayer(program, f"output_{layer}", width, width)
        self._blocks: dict[str, list[int]] = {"K": [], "V": []}

    def __call__(self, x: int, tokens: int) -> int:
        """Return the buffer of the result, where ``tokens`` tokens of each sequence attend to each other."""
        query, key, value = self._projections(x, tokens)
        return self._attend(x, query, (key,), (value,), tokens, tokens)

    def cached(self, x: int, tokens: int, before: int) -> int:
        """Return the same with ``before`` tokens of each sequence already in the key-value cache."""
        query, key, value = self._projections(x, tokens)
        self._append("K", key, before, tokens)
        self._append("V", value, before, tokens)
        return self._attend(x, query, self._blocks["K"], self._blocks["V"], tokens, before + tokens)

    def _projections(self, x: int, tokens: int) -> list[int]:
        rows = self._request.batch_size * tokens
        normed = self._norm(x, f"norm_{self._layer}", rows)
        return [project(name, normed, f"{name}_{self._layer}", rows) for name, project in self._inputs]

    def _append(self, name: str, new: int, before: int, tokens: int) -> None:
        """Add a step that writes ``new`` to the last cache block, and to as many new blocks as needed."""
        request, blocks = self._request, self._blocks[name]
        size = request.block_tokens
        elements = request.batch_size * size * request.hidden_size
        begun = blocks[-1:] if before % size else []
        wanted = -(-(before + tokens) // size)
        made = [
            self._program.temporary(f"cache_{name}_{self._layer}_{index}", elements, "kv_cache")
            for index in range(len(blocks), wanted)
        ]
        copied = float(request.batch_size * tokens * request.hidden_size)
        self._program.step("append", (new, *begun), (*begun, *made), copied, forward=True)
        blocks += made

    def _attend(
        self,
        x: int,
        query: int,
        keys: tuple[int, ...] | list[int],
        values: tuple[int, ...] | list[int],
        tokens: int,
        seen: int,
    ) -> int:
        program, layer, request = self._program, self._layer, self._request
        width, batch = request.hidden_size, request.batch_size
        weights = batch * request.heads * tokens * seen
        product = 2.0 * batch * tokens * seen * width
        scores = program.forward("scores", (query, *keys), f"scores_{layer}", weights, flops=product)
        for key in keys:
            program.strided(key, width)
        soft = program.forward(
            "softmax", (scores,), f"softmax_{layer}", weights, flops=5.0 * weights, saved="outputs"
        )
        rows = batch * tokens
        context = program.forward("context", (soft, *values), f"context_{layer}", rows * width, flops=product)
        output = self._output("output", context, f"output_{layer}", rows)
        return program.forward("add", (x, output), f"attended_{layer}", rows * width, saved="nothing")


MOST_DRAWS = 1024
"""Most routing decisions drawn per layer; more tokens are routed in groups."""


class MoeLayer:
    """norm, router, and per expert with work up, gelu and down; combine, add."""

    def __init__(
        self, program: WorkloadProgram, layer: str, request: WorkloadRequest, random: SeededRandom
    ) -> None:
        width = request.hidden_size
        self._program = program
        self._layer = layer
        self._request = request
        self._random = random
        self._norm = NormLayer(program, f"experts_{layer}", width)
        self._router = LinearLayer(program, f"router_{layer}", width, request.experts)
        self._experts = [
            (
                LinearLayer(program, f"up_{layer}_{index}", width, FFN_FACTOR * width),
                LinearLayer(program, f"down_{layer}_{index}", FFN_FACTOR * width, width),
            )
            for index in range(request.experts)
        ]
        self._popularity = _popularity(request.experts, random)

    def __call__(self, x: int, rows: int) -> int:
        """Return the buffer of the result, shape (rows, hidden_size)."""
        program, layer, width = self._program, self._layer, self._request.hidden_size
        normed = self._norm(x, f"experts_norm_{layer}", rows)
        gates = self._router("router", normed, f"gates_{layer}", rows)
        loads = _loads(self._popularity, rows * self._request.top_k, self._random)
        parts = [self._expert(index, normed, gates, load) for index, load in enumerate(loads) if load]
        mixed = program.forward("combine", (gates, *parts), f"mixed_{layer}", rows * width)
        return program.forward("add", (x, mixed), f"hidden_{layer}", rows * width, saved="nothing")

    def _expert(self, index: int, normed: int, gates: int, rows: int) -> int:
        program, width = self._program, self._request.hidden_size
        where, inner = f"{self._layer}_{index}", rows * FFN_FACTOR * width
        up, down = self._experts[index]
        tokens = program.forward("dispatch", (normed, gates), f"tokens_{where}", rows * width)
        widened = up("expert_up", tokens, f"up_{where}", rows)
        active = program.forward("gelu", (widened,), f"gelu_{where}", inner, flops=8.0 * inner)
        return down("expert_down", active, f"expert_{where}", rows)


def _popularity(experts: int, random: SeededRandom) -> NDArray[np.float64]:
    """Return the cumulative share of each expert: Zipf's law with random ranks; shape (experts,)."""
    shares = 1.0 / (1.0 + np.argsort(random.uniforms(experts), kind="stable"))
    cumulative: NDArray[np.float64] = np.cumsum(shares / shares.sum())
    return cumulative


def _loads(cumulative: NDArray[np.float64], assignments: int, random: SeededRandom) -> list[int]:
    """Return the number of ``assignments`` that go to each expert, drawn at random."""
    draws = min(assignments, MOST_DRAWS)
    chosen = np.searchsorted(cumulative[:-1], random.uniforms(draws), side="right")
    counts = np.bincount(chosen, minlength=len(cumulative)).tolist()
    return [-(-count * assignments // draws) for count in counts]
