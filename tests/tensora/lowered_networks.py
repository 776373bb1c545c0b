"""Networks, views and samples that the tests of JAX and ONNX lower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import nn
from accelera.tensora.models import GPT2, GPT2Config, Llama, LlamaConfig
from tests.tensora.more_samples import MORE
from tests.tensora.op_samples import SAMPLES, Sample
from tests.tensora.window_samples import WINDOW_SAMPLES

CASES = [
    pytest.param(name, each, i, id=f"{name}-{i}")
    for name, samples in (SAMPLES | WINDOW_SAMPLES | MORE).items()
    for i, each in enumerate(samples)
]
SPECIAL = ts.asarray(np.array([[3.0, np.nan, 1, 3, -np.inf, 1], [0, 2, 2, np.nan, np.inf, -1]], np.float32))


def accepts(sample: Sample, dtype: str) -> bool:
    if dtype.startswith("complex"):
        return sample.complexes
    return "float" in dtype or sample.integers


def sample_tensors(sample: Sample, dtype: str, seed: int) -> list[Any]:
    made = [ts.asarray(each) for each in sample.inputs(dtype, seed)]
    return [x if i in sample.fixed else x.to(getattr(ts, dtype)) for i, x in enumerate(made)]


def numbers(tensor: Any) -> np.ndarray:
    wide = tensor.detach().to(ts.float32) if tensor.dtype in (ts.bfloat16, ts.float16) else tensor.detach()
    return np.array(wide)


def ordinary(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Any:
    return ts.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


VIEWS: dict[str, Any] = {
    "transpose": lambda x, k: x.permute(tuple(int(i) for i in np.roll(np.arange(x.ndim), k))),
    "slice": lambda x, k: x[k % max(1, x.shape[0]) :: 1 + k % 2] if x.ndim and x.shape[0] else x,
    "inner": lambda x, k: x[..., : max(1, x.shape[-1] - k % 3)] if x.ndim else x,
    "flip": lambda x, k: ts.flip(x, axis=k % x.ndim) if x.ndim else x,
    "expand": lambda x, k: ts.broadcast_to(x[None], (1 + k % 3, *x.shape)),
    "reshape": lambda x, k: x.reshape((-1, *x.shape[2:])) if x.ndim > 2 and k else x,
    "unsqueeze": lambda x, _: x[..., None],
    "diagonal": lambda x, _: ts.linalg.diagonal(x) if x.ndim > 1 else x,
}


def viewed(chain: list[tuple[str, int]], write: bool) -> Any:
    """A function that reads, and perhaps writes, a view of a view of a computed tensor."""

    def function(x: Any) -> Any:
        base = x * 2
        view = base
        for name, k in chain:
            view = VIEWS[name](view, k)
        if write and not any(name == "expand" for name, _ in chain):
            view[...] = view * view + 1
        return view + 1, base + 0

    return function


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.cells = kind(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][:, -1])


NETWORKS: dict[str, Any] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 3)),
        (5, 6),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        (5, 3, 8, 8),
    ),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
            nn.Flatten(),
            nn.Linear(32, 3),
        ),
        (5, 4, 8),
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 7, 6)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 4, 6)),
}

LANGUAGE_MODELS: dict[str, Any] = {
    "gpt2": lambda: GPT2(
        GPT2Config.from_dict({"vocab_size": 37, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2})
    ),
    "llama": lambda: Llama(
        LlamaConfig.from_dict(
            {
                "vocab_size": 37,
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 16,
            }
        )
    ),
}


def tokens(seed: int = 0) -> Any:
    return ts.asarray(np.random.default_rng(seed).integers(0, 37, size=(2, 9)))
