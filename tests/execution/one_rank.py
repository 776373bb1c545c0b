"""A rank without a cluster: one process, a process group of its own, and what Ray Train would be asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from accelera.execution._internal import Rank


class Train:
    """Ray Train for one rank: it keeps the last checkpoint."""

    CheckpointUploadMode = SimpleNamespace(NO_UPLOAD="no upload")

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks
        self.reported: list[dict[str, Any]] = []
        self._last: Any = None

    def get_context(self) -> Any:
        return SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: self._ranks)

    def get_checkpoint(self) -> Any:
        return self._last

    def Checkpoint(self, path: str) -> Any:  # noqa: N802
        return SimpleNamespace(path=path)

    def report(self, metrics: dict[str, Any], *, checkpoint: Any, **rest: Any) -> None:
        self.reported.append(metrics)
        self._last = checkpoint

    def rank(self, folder: Path) -> Rank:
        return Rank(self, folder, torch.device("cpu"))


@contextmanager
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
