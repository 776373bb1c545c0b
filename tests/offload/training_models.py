"""Models with the traps of training: batch norm, dropout, writes in place, views, half types, branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def losses_by(
    optimizer: torch.optim.Optimizer, loss: Callable[[int], torch.Tensor], steps: int
) -> list[float]:
    """Return the losses of so many steps, in each of which ``loss`` computes it from the step's number."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        found = loss(step)
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses


class Residual(nn.Module):
    """Convolutions with batch norm, and sums and ReLU in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.other = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.other(self.second(y))
        y += x
        return F.relu_(y)


class Pictures(nn.Module):
    """Residual blocks, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(16) for _ in range(3)))
        self.last = nn.Linear(16 * 8 * 8, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.blocks(self.stem(x)), 2)
        return self.last(F.dropout(x.flatten(1), 0.3, self.training))


class Odd(nn.Module):
    """Views that are written to, buffers that change, ``out=``-like fills, weights used outside of layers."""

    count: torch.Tensor
    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("average", torch.zeros(256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        for layer in self.layers:
            y = layer(x)
            left, right = y.chunk(2, -1)
            z = torch.cat([left * torch.sigmoid(right), torch.tanh(left)], -1).clone()
            z[:, :10] = 0.5 * y[:, :10]
            z.mul_(1.01)
            u = torch.empty_like(z)
            u.copy_(z)
            u = u.exp_().clamp(max=3)
            self.average.mul_(0.9).add_(u[:256].detach(), alpha=0.1)
            x = x + F.dropout(u, 0.2, self.training) + self.average[0].expand_as(x) * 0.01
            x = x + torch.einsum("ij,jk->ik", z, layer.weight).softmax(-1)
            x = torch.where(x > 0, x, 0.1 * x)
            x = x / x.norm(dim=-1, keepdim=True)
        return x


class Half(nn.Module):
    """Layers under autocast."""

    def __init__(self) -> None:
        super().__init__()
        parts = [
            part
            for _ in range(3)
            for part in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1))
        ]
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.parts(x).float()


class Branches(nn.Module):
    """Another way for inputs of another sign."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x)
            x = F.gelu(y) * 2 if x.sum() > 0 else torch.tanh(y).exp()
        return x


class Words(nn.Module):
    """Embedding, transformer layers, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 128)
        layers = [
            nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True) for _ in range(2)
        ]
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(128, 500)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "pictures": (Pictures, lambda: torch.randn(32, 3, 16, 16)),
    "odd": (Odd, lambda: torch.randn(512, 256)),
    "half": (Half, lambda: torch.randn(512, 256)),
    "words": (Words, lambda: torch.randint(0, 500, (8, 64))),
}
