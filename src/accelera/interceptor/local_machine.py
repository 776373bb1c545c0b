"""The machine at hand as a hierarchy: how fast torch computes here, measured when first asked for."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import nn

from accelera.capturing import capture
from accelera.capturing.timing import quickest_s
from accelera.memory import Compute, Hierarchy, Tier

_ROUNDS = 7
_MEMORY_BYTES, _DISK_BYTES = 1 << 33, 1 << 40
_DISK_BYTES_PER_S = 2e9


class _Tiny(nn.Module):
    """A residual feed-forward block too small for arithmetic to matter."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x + self.down(nn.functional.gelu(self.up(x))))
        return y.square().mean()


@cache
def local_machine(*, small: bool = False) -> Hierarchy:
    """Return this CPU: arithmetic of a product, bandwidth of a sum, start of an operation.

    A start is what a step of training costs when its tensors are tiny, per operation: torch's dispatch,
    Python and autograd together. Takes a fraction of a second, once per process; ``small`` is for tests.
    """
    edge, length = (128, 1 << 16) if small else (1024, 1 << 24)
    with torch.no_grad():
        left, right, long = torch.randn(edge, edge), torch.randn(edge, edge), torch.randn(length)
        flops_per_s = 2 * edge**3 / quickest_s(lambda: left @ right, _ROUNDS)
        bytes_per_s = 12 * length / quickest_s(lambda: torch.add(long, long, out=long), _ROUNDS)
    tiers = Tier("local", _MEMORY_BYTES, math.inf), Tier("disk", _DISK_BYTES, _DISK_BYTES_PER_S)
    return Hierarchy(tiers, Compute(flops_per_s, bytes_per_s, _start_s(3 if small else 50)))


def _start_s(rounds: int) -> float:
    trace = capture(_Tiny(), torch.randn(2, 8), optimizer=None, timed=rounds)
    return float(trace.meta["measured_s"]) / trace.step_count
