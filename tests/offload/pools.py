"""Models offloaded to small pools, beside the same models that are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in
from tests.offload.simple_cache import SimpleCache

MAKERS: dict[str, Callable[[], Any]] = {
    "copies": SimpleCache,
    "pool": lambda: BlockCache(96 << 10, OffloadConfig(least_bytes=64, block_bytes=64 << 10)),
}
"""Keepers: one that copies for each use and spoils the copy after it, one whose pool holds a few tensors."""


def pair(model: nn.Module, maker: str = "pool") -> tuple[nn.Module, nn.Module]:
    """Return a copy of ``model`` as it is, and an offloaded one."""
    plain, other = copy.deepcopy(model), copy.deepcopy(model)
    swap_in(other, MAKERS[maker]())
    return plain, other


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal in structure, shape, type and every bit of every tensor."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def values(tensor: Any) -> torch.Tensor:
    """Return an ordinary tensor."""
    plain: torch.Tensor = tensor.materialized() if hasattr(tensor, "materialized") else tensor.detach()
    return plain
