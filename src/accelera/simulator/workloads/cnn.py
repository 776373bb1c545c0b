"""CNN: residual blocks of two convolutions in four stages; a stage halves the edge and doubles the width."""

from __future__ import annotations

from typing import NamedTuple

from accelera.simulator.workloads.chance import Chance
from accelera.simulator.workloads.layers import Linear
from accelera.simulator.workloads.request import CLASSES, Request
from accelera.simulator.workloads.tape import Tape

STAGES = 4
_STEM_STRIDE = 4
_NARROWING = 8
"""Channels of the first stage: the hidden size over this."""


class Picture(NamedTuple):
    """An activation of shape (batch, channels, edge, edge)."""

    buffer: int
    channels: int
    edge: int


class Convolution:
    """A convolution and its batch normalisation."""

    def __init__(self, tape: Tape, name: str, channels: tuple[int, int], kernel: int, batch: int) -> None:
        inputs, outputs = channels
        self._tape = tape
        self._name = name
        self._outputs = outputs
        self._batch = batch
        self._flops_per_pixel = 2.0 * inputs * outputs * kernel * kernel
        self._weight = tape.lasting(f"W_{name}", inputs * outputs * kernel * kernel)
        self._scale = tape.lasting(f"scale_{name}", 2 * outputs)

    def __call__(self, x: int, edge: int) -> Picture:
        """Return the result, of ``edge`` x ``edge`` pixels."""
        pixels = self._batch * edge * edge
        elements = pixels * self._outputs
        flops = self._flops_per_pixel * pixels
        made = self._tape.forward("conv", (x, self._weight), f"conv_{self._name}", elements, flops=flops)
        normed = self._tape.forward(
            "batch_norm", (made, self._scale), f"norm_{self._name}", elements, flops=5.0 * elements
        )
        return Picture(normed, self._outputs, edge)


class Block:
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, tape: Tape, layer: int, channels: tuple[int, int], batch: int) -> None:
        inputs, outputs = channels
        self._tape = tape
        self._layer = layer
        self._batch = batch
        self._first = Convolution(tape, f"{layer}a", channels, 3, batch)
        self._second = Convolution(tape, f"{layer}b", (outputs, outputs), 3, batch)
        self._shortcut = Convolution(tape, f"{layer}s", channels, 1, batch) if inputs != outputs else None

    def __call__(self, x: Picture) -> Picture:
        """Return the result; half the edge where the channels change."""
        edge = x.edge if self._shortcut is None else max(1, x.edge // 2)
        first = self._relu(self._first(x.buffer, edge), "a")
        second = self._second(first.buffer, edge)
        beside = x if self._shortcut is None else self._shortcut(x.buffer, edge)
        elements = self._batch * second.channels * edge * edge
        added = self._tape.forward(
            "add", (second.buffer, beside.buffer), f"sum_{self._layer}", elements, saved="nothing"
        )
        return self._relu(second._replace(buffer=added), "b")

    def _relu(self, x: Picture, which: str) -> Picture:
        elements = self._batch * x.channels * x.edge * x.edge
        made = self._tape.forward(
            "relu", (x.buffer,), f"relu_{self._layer}{which}", elements, saved="outputs"
        )
        return x._replace(buffer=made)


class Convolutional:
    """Stem, residual blocks, mean over the pixels, classifier."""

    def __init__(self, tape: Tape, request: Request, _chance: Chance) -> None:
        narrow = max(1, request.hidden_size // _NARROWING)
        widths = [narrow << (index * STAGES // request.num_layers) for index in range(request.num_layers)]
        batch = request.batch_size
        self._tape = tape
        self._request = request
        self._stem = Convolution(tape, "stem", (3, narrow), 7, batch)
        self._blocks = [
            Block(tape, index, channels, batch)
            for index, channels in enumerate(zip([narrow, *widths], widths, strict=False))
        ]
        self._head = Linear(tape, "classes", widths[-1], CLASSES)

    def forward(self) -> int:
        """Add one batch; return its logits."""
        request, tape = self._request, self._tape
        image = tape.fresh("images", request.batch_size * 3 * request.seq_length**2, "input")
        x = self._stem(image, max(1, request.seq_length // _STEM_STRIDE))
        for block in self._blocks:
            x = block(x)
        pooled = tape.forward("mean", (x.buffer,), "pooled", request.batch_size * x.channels)
        return self._head("logits", pooled, "logits", request.batch_size)
