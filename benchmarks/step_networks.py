"""Four networks whose training steps are planned: a GPT-2, a ViT, a ResNet-50 and an MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import accelera.tensora as ts
from accelera.tensora import functional, models, nn, optim


class VisionTransformer(nn.Module):
    """Patches of images through a transformer's encoder."""

    def __init__(self, layers: int, width: int, heads: int, edge: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.places = nn.Parameter(ts.zeros((1, (edge // 16) ** 2, width)))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = ts.permute_dims(ts.flatten(self.patches(x), start_axis=2), (0, 2, 1))
        return self.head(ts.mean(self.norm(self.blocks(x + self.places)), axis=1))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Sequential(
            *convolution(inputs, width, 1),
            *convolution(width, width, 3, stride),
            *convolution(width, 4 * width, 1)[:-1],
        )
        fits = stride == 1 and inputs == 4 * width
        self.shortcut = (
            nn.Identity() if fits else nn.Sequential(*convolution(inputs, 4 * width, 1, stride)[:-1])
        )

    def forward(self, x: Any) -> Any:
        return functional.relu(self.straight(x) + self.shortcut(x))


def convolution(inputs: int, outputs: int, edge: int, stride: int = 1) -> list[nn.Module]:
    """A convolution, its normalization and an activation."""
    conv = nn.Conv2d(inputs, outputs, edge, stride=stride, padding=edge // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def resnet(depths: tuple[int, ...], width: int) -> nn.Module:
    """A ResNet of bottlenecks."""
    layers = [*convolution(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, depth in enumerate(depths):
        for i in range(depth):
            inner = width * 2**stage
            layers.append(Bottleneck(inputs, inner, 2 if stage and not i else 1))
            inputs = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def mlp(depth: int, width: int) -> nn.Module:
    """Linear layers, each normalized, activated and partly dropped."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Training:
    """A network, its AdamW and a batch."""

    def __init__(self, network: nn.Module, data: Any, loss: Callable[[Any, Any], Any]) -> None:
        self.network, self.data, self.loss = network, ts.asarray(data), loss
        self.optimizer = optim.AdamW(network.parameters(), lr=1e-3)

    def step(self) -> None:
        """Take a step, which leaves no gradients."""
        self.loss(self.network, self.data).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def gpt2(*, small: bool) -> Training:
    """Eight blocks of width 512, 4 sequences of 256 of 8192 words."""
    blocks, width, words, length, batch = (2, 32, 64, 16, 2) if small else (8, 512, 8192, 256, 4)
    sizes: dict[str, Any] = {
        "n_layer": blocks,
        "n_embd": width,
        "n_head": 8,
        "vocab_size": words,
        "n_positions": length,
    }
    data = np.random.default_rng(0).integers(0, words, (batch, length))
    return Training(models.GPT2(models.GPT2Config(**sizes)), data, lambda net, x: net(x, targets=x)[1])


def vit(*, small: bool) -> Training:
    """Twelve layers of width 384, 8 images of 224 x 224."""
    layers, width, edge, batch = (2, 48, 32, 2) if small else (12, 384, 224, 8)
    return _of_images(VisionTransformer(layers, width, 6, edge), batch, (3, edge, edge))


def resnet50(*, small: bool) -> Training:
    """Bottlenecks of 3, 4, 6 and 3, 8 images of 224 x 224."""
    depths, width, edge, batch = ((1, 1), 8, 32, 2) if small else ((3, 4, 6, 3), 64, 224, 8)
    return _of_images(resnet(depths, width), batch, (3, edge, edge))


def mlp12(*, small: bool) -> Training:
    """Twelve layers of width 1024, 4096 rows."""
    depth, width, batch = (3, 64, 256) if small else (12, 1024, 4096)
    return _of_images(mlp(depth, width), batch, (width,))


def _of_images(network: nn.Module, batch: int, shape: tuple[int, ...]) -> Training:
    random = np.random.default_rng(0)
    labels = ts.asarray(random.integers(0, 10, batch))
    data = random.standard_normal((batch, *shape), np.float32)
    return Training(network, data, lambda net, x: functional.cross_entropy(net(x), labels))


NETWORKS: dict[str, Callable[..., Training]] = {"gpt2": gpt2, "vit": vit, "resnet50": resnet50, "mlp": mlp12}
