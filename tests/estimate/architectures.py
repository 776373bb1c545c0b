"""Small models of many architectures, built on the spot, with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from benchmarks.models import ResNet, ids, mlp, tokens


class Architecture(NamedTuple):
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]


class Recurrent(nn.Module):
    """Embedding, LSTM and head."""

    def __init__(self, *, bidirectional: bool = False, layers: int = 2, width: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(500, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(width * (2 if bidirectional else 1), 500)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.cells(self.table(rows))[0])
        return result


class UNet(nn.Module):
    """Two steps down, two up, sums across, and a head of three channels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.bottom = nn.Conv2d(2 * width, 4 * width, 3, 2, 1)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.last = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.head = nn.Conv2d(width, 3, 1)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.act(self.first(x))
        half = self.act(self.norm(self.down(wide)))
        up = self.act(self.up(self.act(self.bottom(half))) + half)
        result: torch.Tensor = self.head(self.act(self.last(up)) + wide)
        return result


def separable() -> nn.Module:
    """Depthwise and pointwise convolutions by turns, as in MobileNet."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(inplace=True),
    ]
    for inner, outer, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1)):
        depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        pointwise = nn.Conv2d(inner, outer, 1, bias=False)
        for convolution in (depthwise, pointwise):
            parts += [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU6(inplace=True)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))


def of_config(kind: str, model: str, **sizes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        module: nn.Module = getattr(transformers, model)(transformers.AutoConfig.for_model(kind, **sizes))
        return module

    return build


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(192, 6, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 3)


def images(count: int, side: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(count, 3, side, side), "labels": torch.zeros(count, dtype=torch.long)}


def architectures() -> dict[str, Architecture]:
    """Return models of 3 to 30 MB in training, by name."""
    few = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 512}
    words = {"vocab_size": 1000}
    gpt2 = {"n_layer": 2, "n_embd": 192, "n_head": 6, "bos_token_id": 0, "eos_token_id": 0}
    t5 = {
        "d_model": 192,
        "num_layers": 2,
        "num_heads": 6,
        "d_ff": 512,
        "d_kv": 32,
        "decoder_start_token_id": 0,
    }
    picture = {"image_size": 64, "patch_size": 8}

    def text() -> Any:
        return tokens(4, 96)

    return {
        "mlp": Architecture(lambda: mlp(512, 6), lambda: torch.randn(128, 512)),
        "llama": Architecture(of_config("llama", "LlamaForCausalLM", **few, **words), text),
        "gpt2": Architecture(of_config("gpt2", "GPT2LMHeadModel", **gpt2, **words), text),
        "bert": Architecture(of_config("bert", "BertForMaskedLM", **few, **words), text),
        "t5": Architecture(of_config("t5", "T5ForConditionalGeneration", **t5, **words), text),
        "vit": Architecture(
            of_config("vit", "ViTForImageClassification", **few, **picture), lambda: images(16, 64)
        ),
        "encoder": Architecture(encoder, lambda: torch.randn(4, 96, 192)),
        "resnet": Architecture(lambda: ResNet((2, 1)), lambda: torch.randn(4, 3, 96, 96)),
        "separable": Architecture(separable, lambda: torch.randn(4, 3, 96, 96)),
        "unet": Architecture(UNet, lambda: torch.randn(2, 3, 96, 96)),
        "lstm": Architecture(Recurrent, lambda: ids(8, 64)),
        "both_ways": Architecture(lambda: Recurrent(bidirectional=True, layers=1), lambda: ids(8, 64)),
    }
