"""PyTorch's code for tensors of another kind, loaded before the memory that it takes would count."""

from __future__ import annotations

from functools import cache

import torch

from accelera.offload.homes import RamHomes
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tensors.adopting import adopted
from accelera.offload.tiled.meta import foretold

aten = torch.ops.aten


@cache
def load_code() -> None:
    """Carry out one small product with an offloaded weight, and foretell it.

    The first one in a process makes PyTorch load some thousand modules, which take about 100 MiB.
    """
    keeper = Keeper(1 << 16, homes=RamHomes())
    bias, rows = torch.zeros(2, device="cpu"), torch.zeros(1, 2, device="cpu")
    weight = torch.zeros(2, 2, device="cpu")
    with torch.no_grad():
        aten.addmm.default(bias, rows, adopted(keeper, weight))
        foretold(aten.addmm.default, (bias, rows, weight), {})
    keeper.close()
