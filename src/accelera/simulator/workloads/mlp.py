"""MLP: residual feed-forward layers on rows of numbers."""

from __future__ import annotations

from accelera.simulator.workloads.chance import Chance
from accelera.simulator.workloads.layers import FeedForward, Linear
from accelera.simulator.workloads.request import CLASSES, Request
from accelera.simulator.workloads.tape import Tape


class Perceptron:
    """norm, up, gelu, down and add per layer; a classifier at the end."""

    def __init__(self, tape: Tape, request: Request, _chance: Chance) -> None:
        self._tape = tape
        self._request = request
        width = request.hidden_size
        self._layers = [FeedForward(tape, str(index), width) for index in range(request.num_layers)]
        self._head = Linear(tape, "classes", width, CLASSES)

    def forward(self) -> int:
        """Add one batch; return its logits."""
        rows = self._request.rows
        x = self._tape.fresh("rows", rows * self._request.hidden_size, "input")
        for layer in self._layers:
            x = layer(x, rows)
        return self._head("logits", x, "logits", rows)
