"""Multi-head attention: over the whole batch at once, or over a key-value cache that grows."""

from __future__ import annotations

from accelera.simulator.workloads.layers import Linear, Norm
from accelera.simulator.workloads.request import Request
from accelera.simulator.workloads.tape import Tape


class Attention:
    """norm, Q, K, V, scores, softmax, context, output, add."""

    def __init__(self, tape: Tape, layer: str, request: Request) -> None:
        width = request.hidden_size
        self._tape = tape
        self._layer = layer
        self._request = request
        self._norm = Norm(tape, f"attention_{layer}", width)
        self._inputs = [(name, Linear(tape, f"{name}_{layer}", width, width)) for name in ("Q", "K", "V")]
        self._output = Linear(tape, f"output_{layer}", width, width)
        self._blocks: dict[str, list[int]] = {"K": [], "V": []}

    def __call__(self, x: int, tokens: int) -> int:
        """Return the buffer of the result for ``tokens`` tokens of each sequence that see each other."""
        query, key, value = self._projections(x, tokens)
        return self._rest(x, query, (key,), (value,), tokens, tokens)

    def cached(self, x: int, tokens: int, before: int) -> int:
        """Return the same where ``before`` tokens of each sequence are in the key-value cache already."""
        query, key, value = self._projections(x, tokens)
        self._append("K", key, before, tokens)
        self._append("V", value, before, tokens)
        return self._rest(x, query, self._blocks["K"], self._blocks["V"], tokens, before + tokens)

    def _projections(self, x: int, tokens: int) -> list[int]:
        rows = self._request.batch_size * tokens
        normed = self._norm(x, f"norm_{self._layer}", rows)
        return [project(name, normed, f"{name}_{self._layer}", rows) for name, project in self._inputs]

    def _append(self, name: str, new: int, before: int, tokens: int) -> None:
        """Add a step that writes ``new`` into the last block, and into as many new ones as it takes."""
        request, blocks = self._request, self._blocks[name]
        size = request.block_tokens
        elements = request.batch_size * size * request.hidden_size
        begun = blocks[-1:] if before % size else []
        wanted = -(-(before + tokens) // size)
        made = [
            self._tape.fresh(f"cache_{name}_{self._layer}_{index}", elements, "kv_cache")
            for index in range(len(blocks), wanted)
        ]
        copied = float(request.batch_size * tokens * request.hidden_size)
        self._tape.step("append", (new, *begun), (*begun, *made), copied, forward=True)
        blocks += made

    def _rest(
        self,
        x: int,
        query: int,
        keys: tuple[int, ...] | list[int],
        values: tuple[int, ...] | list[int],
        tokens: int,
        seen: int,
    ) -> int:
        tape, layer, request = self._tape, self._layer, self._request
        width, batch = request.hidden_size, request.batch_size
        weights = batch * request.heads * tokens * seen
        product = 2.0 * batch * tokens * seen * width
        scores = tape.forward("scores", (query, *keys), f"scores_{layer}", weights, flops=product)
        for key in keys:
            tape.strided(key, width)
        soft = tape.forward(
            "softmax", (scores,), f"softmax_{layer}", weights, flops=5.0 * weights, saved="outputs"
        )
        rows = batch * tokens
        context = tape.forward("context", (soft, *values), f"context_{layer}", rows * width, flops=product)
        output = self._output("output", context, f"output_{layer}", rows)
        return tape.forward("add", (x, output), f"attended_{layer}", rows * width, saved="nothing")
