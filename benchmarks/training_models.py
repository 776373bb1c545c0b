"""Three networks to train, as arrays and losses that every tensor library can carry out.

A loss is written in the names of ``torch.nn.functional``; a library that has other ones brings functions
under these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Loss = Callable[[Any, list[Any], Any, Any], Any]
"""Functions of the library, parameters, inputs and targets to the loss."""


@dataclass(frozen=True)
class Training:
    """First weights, one batch, the loss, and the optimizer with its options under PyTorch's names."""

    parameters: list[Any]
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: str
    options: dict[str, float]


def mlp(*, small: bool) -> Training:
    """An MLP 784-1024-1024-10, a batch of 256, Adam."""
    random = np.random.default_rng(0)
    widths, batch = ((784, 16, 16, 10), 8) if small else ((784, 1024, 1024, 10), 256)
    parameters = []
    for i, o in itertools.pairwise(widths):
        parameters += [_weight(random, (o, i), i), np.zeros(o, np.float32)]

    def loss(f: Any, p: list[Any], x: Any, y: Any) -> Any:
        x = f.relu(f.linear(x, p[0], p[1]))
        x = f.relu(f.linear(x, p[2], p[3]))
        return f.cross_entropy(f.linear(x, p[4], p[5]), y)

    images = random.standard_normal((batch, 784), np.float32)
    return Training(parameters, images, random.integers(0, 10, batch), loss, "Adam", {"lr": 1e-3})


def cnn(*, small: bool) -> Training:
    """Three convolutions of 32, 64 and 128 channels on 32 images of 3 x 32 x 32, SGD with momentum."""
    random = np.random.default_rng(0)
    channels, edge, batch = ((3, 4, 4, 8), 8, 2) if small else ((3, 32, 64, 128), 32, 32)
    parameters = []
    for i, o in itertools.pairwise(channels):
        parameters += [_weight(random, (o, i, 3, 3), 9 * i), np.zeros(o, np.float32)]
    features = channels[-1] * (edge // 4) ** 2
    parameters += [_weight(random, (10, features), features), np.zeros(10, np.float32)]

    def loss(f: Any, p: list[Any], x: Any, y: Any) -> Any:
        x = f.relu(f.conv2d(x, p[0], p[1], padding=1))
        x = f.max_pool2d(f.relu(f.conv2d(x, p[2], p[3], padding=1)), 2)
        x = f.max_pool2d(f.relu(f.conv2d(x, p[4], p[5], padding=1)), 2)
        return f.cross_entropy(f.linear(x.reshape((batch, features)), p[6], p[7]), y)

    images = random.standard_normal((batch, 3, edge, edge), np.float32)
    options = {"lr": 1e-2, "momentum": 0.9}
    return Training(parameters, images, random.integers(0, 10, batch), loss, "SGD", options)


def transformer(*, small: bool) -> Training:
    """Four blocks of a GPT, width 256, 8 heads, 8 sequences of 128 of 256 words, AdamW."""
    random = np.random.default_rng(0)
    blocks, width, heads, length, batch, words = (1, 16, 2, 8, 2, 16) if small else (4, 256, 8, 128, 8, 256)
    parameters = [_weight(random, (words, width), 2500), _weight(random, (length, width), 2500)]
    for _ in range(blocks):
        parameters += [np.ones(width, np.float32), np.zeros(width, np.float32)] * 2
        for o, i in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
            parameters += [_weight(random, (o, i), i), np.zeros(o, np.float32)]
    parameters += [np.ones(width, np.float32), np.zeros(width, np.float32)]

    def attend(f: Any, x: Any, into: list[Any], out: list[Any]) -> Any:
        split = f.linear(x, *into).reshape((batch, length, 3, heads, width // heads))
        q, k, v = (split[:, :, i].swapaxes(1, 2) for i in range(3))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        return f.linear(mixed.swapaxes(1, 2).reshape((batch, length, width)), *out)

    def block(f: Any, x: Any, p: list[Any]) -> Any:
        x = x + attend(f, f.layer_norm(x, (width,), p[0], p[1]), p[4:6], p[6:8])
        raised = f.gelu(f.linear(f.layer_norm(x, (width,), p[2], p[3]), *p[8:10]), approximate="tanh")
        return x + f.linear(raised, *p[10:12])

    def loss(f: Any, p: list[Any], x: Any, y: Any) -> Any:
        h = f.embedding(x, p[0]) + p[1]
        for i in range(blocks):
            h = block(f, h, p[2 + 12 * i : 14 + 12 * i])
        logits = f.linear(f.layer_norm(h, (width,), p[-2], p[-1]), p[0])
        return f.cross_entropy(logits.reshape((batch * length, words)), y)

    inputs = random.integers(0, words, (batch, length))
    options = {"lr": 1e-3, "weight_decay": 0.01}
    return Training(parameters, inputs, random.integers(0, words, batch * length), loss, "AdamW", options)


def _weight(random: Any, shape: tuple[int, ...], inputs: int) -> Any:
    return random.standard_normal(shape, np.float32) / np.float32(inputs) ** 0.5


MODELS: dict[str, Callable[..., Training]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
