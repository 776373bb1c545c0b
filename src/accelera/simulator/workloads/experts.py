"""A mixture of experts: a router sends every token to a few of them, and some are far more popular."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.workloads.chance import Chance
from accelera.simulator.workloads.layers import FFN_FACTOR, Linear, Norm
from accelera.simulator.workloads.request import Request
from accelera.simulator.workloads.tape import Tape

DRAWS = 1024
"""Most routing decisions drawn per layer; more tokens are routed in groups."""


class Experts:
    """norm, router, and per expert with work up, gelu and down; combine, add."""

    def __init__(self, tape: Tape, layer: str, request: Request, chance: Chance) -> None:
        width = request.hidden_size
        self._tape = tape
        self._layer = layer
        self._request = request
        self._chance = chance
        self._norm = Norm(tape, f"experts_{layer}", width)
        self._router = Linear(tape, f"router_{layer}", width, request.experts)
        self._experts = [
            (
                Linear(tape, f"up_{layer}_{index}", width, FFN_FACTOR * width),
                Linear(tape, f"down_{layer}_{index}", FFN_FACTOR * width, width),
            )
            for index in range(request.experts)
        ]
        self._popularity = _popularity(request.experts, chance)

    def __call__(self, x: int, rows: int) -> int:
        """Return the buffer of the result, shape (rows, hidden_size)."""
        tape, layer, width = self._tape, self._layer, self._request.hidden_size
        normed = self._norm(x, f"experts_norm_{layer}", rows)
        gates = self._router("router", normed, f"gates_{layer}", rows)
        loads = _loads(self._popularity, rows * self._request.top_k, self._chance)
        parts = [self._expert(index, normed, gates, load) for index, load in enumerate(loads) if load]
        mixed = tape.forward("combine", (gates, *parts), f"mixed_{layer}", rows * width)
        return tape.forward("add", (x, mixed), f"hidden_{layer}", rows * width, saved="nothing")

    def _expert(self, index: int, normed: int, gates: int, rows: int) -> int:
        tape, width = self._tape, self._request.hidden_size
        where, inner = f"{self._layer}_{index}", rows * FFN_FACTOR * width
        up, down = self._experts[index]
        tokens = tape.forward("dispatch", (normed, gates), f"tokens_{where}", rows * width)
        risen = up("expert_up", tokens, f"up_{where}", rows)
        active = tape.forward("gelu", (risen,), f"gelu_{where}", inner, flops=8.0 * inner)
        return down("expert_down", active, f"expert_{where}", rows)


def _popularity(experts: int, chance: Chance) -> NDArray[np.float64]:
    """Return the cumulative share per expert: Zipf's law, its ranks dealt out at random; (experts,)."""
    shares = 1.0 / (1.0 + np.argsort(chance.uniforms(experts), kind="stable"))
    cumulative: NDArray[np.float64] = np.cumsum(shares / shares.sum())
    return cumulative


def _loads(cumulative: NDArray[np.float64], assignments: int, chance: Chance) -> list[int]:
    """Return how many of ``assignments`` go to each expert."""
    draws = min(assignments, DRAWS)
    chosen = np.searchsorted(cumulative[:-1], chance.uniforms(draws), side="right")
    counts = np.bincount(chosen, minlength=len(cumulative)).tolist()
    return [-(-count * assignments // draws) for count in counts]
