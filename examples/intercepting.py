"""An unchanged training step whose largest tensors do not fit the budget for one call."""

from __future__ import annotations

import torch
from torch import nn

import accelera


def step(model: nn.Module, tokens: torch.Tensor) -> float:
    """One forward and backward pass."""
    loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0].long().clamp(0, 3999))
    loss.backward()
    return loss.item()


torch.manual_seed(0)
first = nn.Linear(32, 64)
model = nn.Sequential(first, nn.GELU(), nn.Linear(64, 4000))
tokens = torch.rand(2000, 32) * 10

plain = step(model, tokens)
assert first.weight.grad is not None
gradient = first.weight.grad.clone()
model.zero_grad()

with accelera.intercepted(budget="28MiB", memory_threshold="8MiB"):
    within = step(model, tokens)

print(f"loss {plain:.6f} in plain PyTorch, {within:.6f} within 28 MiB per call")
print("gradients agree:", torch.allclose(gradient, first.weight.grad, rtol=1e-3, atol=1e-6))
print(accelera.stats())
