"""Operations that several models share, as forward steps on a tape."""

from __future__ import annotations

from accelera.simulator.workloads.tape import Tape

FFN_FACTOR = 4


class Linear:
    """x (rows, inputs) @ W (inputs, outputs), without a bias."""

    def __init__(self, tape: Tape, name: str, inputs: int, outputs: int) -> None:
        self._tape = tape
        self._inputs = inputs
        self._outputs = outputs
        self._weight = tape.lasting(f"W_{name}", inputs * outputs)

    def __call__(self, op: str, x: int, name: str, rows: int) -> int:
        """Return the buffer of the result, shape (rows, outputs)."""
        flops = 2.0 * rows * self._inputs * self._outputs
        return self._tape.forward(op, (x, self._weight), name, rows * self._outputs, flops=flops)


class Norm:
    """Layer normalisation with a scale of ``width`` elements."""

    def __init__(self, tape: Tape, name: str, width: int) -> None:
        self._tape = tape
        self._width = width
        self._scale = tape.lasting(f"scale_{name}", width)

    def __call__(self, x: int, name: str, rows: int) -> int:
        """Return the buffer of the result, shape (rows, width)."""
        elements = rows * self._width
        return self._tape.forward("norm", (x, self._scale), name, elements, flops=5.0 * elements)


class FeedForward:
    """norm, up, gelu, down, add: (rows, width) to (rows, width)."""

    def __init__(self, tape: Tape, layer: str, width: int) -> None:
        self._tape = tape
        self._layer = layer
        self._width = width
        self._norm = Norm(tape, f"ffn_{layer}", width)
        self._up = Linear(tape, f"up_{layer}", width, FFN_FACTOR * width)
        self._down = Linear(tape, f"down_{layer}", FFN_FACTOR * width, width)

    def __call__(self, x: int, rows: int) -> int:
        """Return the buffer of the result, shape (rows, width)."""
        layer, inner = self._layer, rows * FFN_FACTOR * self._width
        normed = self._norm(x, f"ffn_norm_{layer}", rows)
        up = self._up("up", normed, f"up_{layer}", rows)
        active = self._tape.forward("gelu", (up,), f"gelu_{layer}", inner, flops=8.0 * inner)
        down = self._down("down", active, f"down_{layer}", rows)
        return self._tape.forward("add", (x, down), f"hidden_{layer}", rows * self._width, saved="nothing")
