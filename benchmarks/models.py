"""Six models of reference, captured in training without their weights, and the step of a 7B Llama.

The first two are written in torch.nn here, the MoE too; GPT-2, BERT and Llama are those of
``transformers`` built from a configuration, with no download.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from accelera import capture
from accelera.trace import Trace

ITERATIONS = 3


class Reference(NamedTuple):
    """One model and what it is trained on."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    dtype: str = "float32"
    loss: Callable[[Any], torch.Tensor] | None = None


@cache
def reference_traces(iterations: int = ITERATIONS, *, small: bool = False) -> dict[str, Trace]:
    """Return the traces of the six models by name, each of ``iterations`` AdamW iterations.

    ``small`` takes models of the same kind a hundred times smaller, for tests.
    """
    models = small_references() if small else references()
    return {name: traced(model, iterations) for name, model in models.items()}


def references() -> dict[str, Reference]:
    """Return the six models: of 50M, 22M, 124M, 110M, 479M and 953M parameters."""
    return {
        "mlp": Reference(lambda: mlp(2048, layers=12), lambda: torch.randn(512, 2048)),
        "resnet34": Reference(resnet34, lambda: torch.randn(64, 3, 224, 224)),
        "gpt2": Reference(gpt2, lambda: tokens(8, 512)),
        "bert": Reference(bert, lambda: tokens(16, 256)),
        "moe": Reference(MoE, lambda: (ids(4, 256),)),
        "llama": Reference(
            lambda: llama(hidden_size=2048, intermediate_size=5632, num_hidden_layers=16),
            lambda: tokens(2, 1024),
            "bfloat16",
        ),
    }


def small_references() -> dict[str, Reference]:
    """Return models of the same kinds, small enough for real weights; without transformers its three not."""
    if find_spec("transformers") is None:
        return _small_own()
    few = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128}
    return {
        **_small_own(),
        "gpt2": Reference(
            lambda: gpt2(n_layer=2, n_embd=64, n_head=4, vocab_size=128), lambda: tokens(2, 16)
        ),
        "bert": Reference(lambda: bert(**few, intermediate_size=128), lambda: tokens(2, 16)),
        "llama": Reference(lambda: llama(**few, intermediate_size=128), lambda: tokens(2, 16)),
    }


def _small_own() -> dict[str, Reference]:
    return {
        "mlp": Reference(lambda: mlp(64, layers=4), lambda: torch.randn(16, 64)),
        "resnet34": Reference(lambda: ResNet((1, 1), classes=10), lambda: torch.randn(2, 3, 32, 32)),
        "moe": Reference(
            lambda: MoE(layers=2, width=64, inner=128, experts=4, vocabulary=128), lambda: (ids(2, 16),)
        ),
    }


def llama_7b_step(*, small: bool = False) -> Trace:
    """Return one AdamW iteration of a Llama of 7B parameters in bfloat16, batch 1, 2048 tokens."""
    if small:
        models = small_references()
        return traced(models.get("llama", models["moe"]), 1)
    return traced(Reference(llama, lambda: tokens(1, 2048), "bfloat16"), 1)


def traced(model: Reference, iterations: int) -> Trace:
    """Return ``iterations`` of training of ``model``, captured without its weights."""
    return capture(model.build, model.inputs, steps=iterations, loss=model.loss, dtype=model.dtype, fake=True)


def ids(batch: int, length: int, vocabulary: int = 128) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    rows = ids(batch, length)
    return {"input_ids": rows, "labels": rows.clone()}


def llama(**sizes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**sizes))


def gpt2(**sizes: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**sizes))


def bert(**sizes: Any) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**sizes))


def mlp(width: int, layers: int) -> nn.Module:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        same = inner == outer and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else _projection(inner, outer, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def _projection(inner: int, outer: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))


class ResNet(nn.Module):
    """A residual network of basic blocks."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        parts, inner = [], 64
        for stage, count in enumerate(blocks):
            outer = 64 << stage
            for index in range(count):
                parts.append(BasicBlock(inner, outer, 2 if stage and not index else 1))
                inner = outer
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(inner, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


def resnet34() -> nn.Module:
    return ResNet((3, 4, 6, 3))


class Experts(nn.Module):
    """A feed-forward layer of which each token takes the two experts of the highest weight.

    Every expert has a fixed capacity, so that shapes do not depend on the data: its best tokens go there.
    """

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        weights = self.router(rows).softmax(-1)
        capacity = max(1, 2 * len(rows) // len(self.experts))
        result = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            weight, chosen = weights[:, index].topk(capacity)
            result = result.index_add(0, chosen, expert(rows[chosen]) * weight[:, None])
        return result.view_as(x)


class MoEBlock(nn.Module):
    """Causal attention and experts, each after a norm and beside a shortcut."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.heads = width // 64 or 1
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(width, inner, experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        attended: torch.Tensor = x + self.experts(self.norm2(x))
        return attended


class MoE(nn.Module):
    """A language model with experts; by default of 479M parameters."""

    def __init__(
        self,
        layers: int = 10,
        width: int = 768,
        inner: int = 3072,
        experts: int = 8,
        vocabulary: int = 50257,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(MoEBlock(width, inner, experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.embedding(rows)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), rows[:, 1:].flatten())
