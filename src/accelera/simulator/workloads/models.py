"""Models of the synthetic workloads: Transformer and MoE, CNN, MLP, each a class with ``forward``."""

from __future__ import annotations

from typing import NamedTuple

from accelera.simulator.workloads.layers import (
    AttentionLayer,
    FeedForwardLayer,
    LinearLayer,
    MoeLayer,
    NormLayer,
)
from accelera.simulator.workloads.program import SeededRandom, WorkloadProgram
from accelera.simulator.workloads.request import CLASSES, VOCABULARY, WorkloadRequest

STAGES = 4
_STEM_STRIDE = 4
_NARROWING = 8
"""Channels of the first stage: the hidden size over this."""


class ImageActivation(NamedTuple):
    """An activation of shape (batch, channels, edge, edge)."""

    buffer: int
    channels: int
    edge: int


class ConvolutionLayer:
    """A convolution and its batch normalisation."""

    def __init__(
        self, program: WorkloadProgram, name: str, channels: tuple[int, int], kernel: int, batch: int
    ) -> None:
        inputs, outputs = channels
        self._program = program
        self._name = name
        self._outputs = outputs
        self._batch = batch
        self._flops_per_pixel = 2.0 * inputs * outputs * kernel * kernel
        self._weight = program.persistent(f"W_{name}", inputs * outputs * kernel * kernel)
        self._scale = program.persistent(f"scale_{name}", 2 * outputs)

    def __call__(self, x: int, edge: int) -> ImageActivation:
        """Return the result, of ``edge`` x ``edge`` pixels."""
        pixels = self._batch * edge * edge
        elements = pixels * self._outputs
        flops = self._flops_per_pixel * pixels
        made = self._program.forward("conv", (x, self._weight), f"conv_{self._name}", elements, flops=flops)
        normed = self._program.forward(
            "batch_norm", (made, self._scale), f"norm_{self._name}", elements, flops=5.0 * elements
        )
        return ImageActivation(normed, self._outputs, edge)


class ResidualBlock:
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, program: WorkloadProgram, layer: int, channels: tuple[int, int], batch: int) -> None:
        inputs, outputs = channels
        self._program = program
        self._layer = layer
        self._batch = batch
        self._first = ConvolutionLayer(program, f"{layer}a", channels, 3, batch)
        self._second = ConvolutionLayer(program, f"{layer}b", (outputs, outputs), 3, batch)
        self._shortcut = (
            ConvolutionLayer(program, f"{layer}s", channels, 1, batch) if inputs != outputs else None
        )

    def __call__(self, x: ImageActivation) -> ImageActivation:
        """Return the result; half the edge where the channels change."""
        edge = x.edge if self._shortcut is None else max(1, x.edge // 2)
        first = self._relu(self._first(x.buffer, edge), "a")
        second = self._second(first.buffer, edge)
        beside = x if self._shortcut is None else self._shortcut(x.buffer, edge)
        elements = self._batch * second.channels * edge * edge
        added = self._program.forward(
            "add", (second.buffer, beside.buffer), f"sum_{self._layer}", elements, saved="nothing"
        )
        return self._relu(second._replace(buffer=added), "b")

    def _relu(self, x: ImageActivation, which: str) -> ImageActivation:
        elements = self._batch * x.channels * x.edge * x.edge
        made = self._program.forward(
            "relu", (x.buffer,), f"relu_{self._layer}{which}", elements, saved="outputs"
        )
        return x._replace(buffer=made)


class Convolutional:
    """Stem, residual blocks, mean over the pixels, classifier."""

    def __init__(self, program: WorkloadProgram, request: WorkloadRequest, _random: SeededRandom) -> None:
        narrow = max(1, request.hidden_size // _NARROWING)
        widths = [narrow << (index * STAGES // request.num_layers) for index in range(request.num_layers)]
        batch = request.batch_size
        self._program = program
        self._request = request
        self._stem = ConvolutionLayer(program, "stem", (3, narrow), 7, batch)
        self._blocks = [
            ResidualBlock(program, index, channels, batch)
            for index, channels in enumerate(zip([narrow, *widths], widths, strict=False))
        ]
        self._head = LinearLayer(program, "classes", widths[-1], CLASSES)

    def forward(self) -> int:
        """Add one batch; return its logits."""
        request, program = self._request, self._program
        image = program.temporary("images", request.batch_size * 3 * request.seq_length**2, "input")
        x = self._stem(image, max(1, request.seq_length // _STEM_STRIDE))
        for block in self._blocks:
            x = block(x)
        pooled = program.forward("mean", (x.buffer,), "pooled", request.batch_size * x.channels)
        return self._head("logits", pooled, "logits", request.batch_size)


class Perceptron:
    """norm, up, gelu, down and add per layer; a classifier at the end."""

    def __init__(self, program: WorkloadProgram, request: WorkloadRequest, _random: SeededRandom) -> None:
        self._program = program
        self._request = request
        width = request.hidden_size
        self._layers = [FeedForwardLayer(program, str(index), width) for index in range(request.num_layers)]
        self._head = LinearLayer(program, "classes", width, CLASSES)

    def forward(self) -> int:
        """Add one batch; return its logits."""
        rows = self._request.rows
        x = self._program.temporary("rows", rows * self._request.hidden_size, "input")
        for layer in self._layers:
            x = layer(x, rows)
        return self._head("logits", x, "logits", rows)


class LanguageModel:
    """A stack of decoder layers; the embedding is also the output's weight."""

    def __init__(self, program: WorkloadProgram, request: WorkloadRequest, random: SeededRandom) -> None:
        self._program = program
        self._request = request
        self._table = program.persistent("W_embedding", VOCABULARY * request.hidden_size)
        self._layers = [
            (AttentionLayer(program, str(index), request), self._feed_forward(str(index), random))
            for index in range(request.num_layers)
        ]
        self._norm = NormLayer(program, "final", request.hidden_size)

    def forward(self) -> int:
        """Add one batch; return its logits: of every token in training, else of the last ones."""
        request = self._request
        x = self._embedded(request.seq_length)
        for attention, feed_forward in self._layers:
            x = feed_forward(attention(x, request.seq_length), request.rows)
        wanted = request.rows if request.mode == "training" else request.batch_size
        return self._logits(x, request.rows, wanted)

    def decode(self, tokens: int, before: int) -> int:
        """Add ``tokens`` tokens per sequence after ``before`` cached ones; return the last one's logits."""
        rows = self._request.batch_size * tokens
        x = self._embedded(tokens)
        for attention, feed_forward in self._layers:
            x = feed_forward(attention.cached(x, tokens, before), rows)
        return self._logits(x, rows, self._request.batch_size)

    def _feed_forward(self, layer: str, random: SeededRandom) -> FeedForwardLayer | MoeLayer:
        if self._request.model_type == "MoE":
            return MoeLayer(self._program, layer, self._request, random)
        return FeedForwardLayer(self._program, layer, self._request.hidden_size)

    def _embedded(self, tokens: int) -> int:
        program, rows = self._program, self._request.batch_size * tokens
        given = program.temporary("tokens", rows, "input", "int64")
        return program.forward(
            "embedding", (given, self._table), "embedded", rows * self._request.hidden_size
        )

    def _logits(self, x: int, rows: int, wanted: int) -> int:
        normed = self._norm(x, "final_norm", rows)
        flops = 2.0 * wanted * self._request.hidden_size * VOCABULARY
        made = self._program.forward(
            "logits", (normed, self._table), "logits", wanted * VOCABULARY, flops=flops
        )
        self._program.strided(self._table, self._request.hidden_size)
        return made
