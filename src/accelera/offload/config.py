"""Options of an offloaded model: one record, made at the front door and read where an option counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LEAST_BYTES = 64 << 10
"""Tensors below stay ordinary ones."""


@dataclass(frozen=True)
class OffloadConfig:
    """Every option of an offloaded model besides the model, its device and its budget.

    An option of ``offload`` is a field here, and is read from here.
    """

    policy: str = "loop"
    """Name of an online eviction policy."""
    store: str | Path | None = None
    """Folder for what is written; None: RAM beside an accelerator, else the folder for temporary files."""
    activations: str = "auto"
    """``training.hooks.CHOICES``: keep, recompute or offload what the backward pass needs, or ``"auto"``."""
    record: bool = False
    """Whether to keep a trace."""
    train: bool = False
    """Whether the model trains: blocks are small enough for an optimizer's step."""
    least_bytes: int = LEAST_BYTES
    """Tensors below stay ordinary ones."""
    block_bytes: int | None = None
    """Largest block; None: a quarter of the capacity."""
    prefetch_bytes: int | None = None
    """Most bytes in flight beside what operators use; 0: no prefetch, None: chosen by capacity."""


@dataclass(frozen=True)
class CacheBudget:
    """Bytes of a device for a block cache and all tensors beside it."""

    limit_bytes: int
    """Most bytes for both; what the process holds beyond the difference makes blocks leave."""
    fixed_bytes: int = 0
    """Part of the difference for what is neither block nor tensor, such as staging buffers."""
    planned: bool = False
    """Whether the difference was planned, so that it holds all that operators take at once; else learned."""
