"""``TrainingRun``: what came of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from accelera.execution.cluster.training.checkpoint import restore
from accelera.execution.cluster.training.parts import check_parts


@final
@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Result of ``RayCluster.train``."""

    steps: int
    """Steps that are done."""
    notes: tuple[dict[str, list[float]], ...]
    """For every rank what it noted, by name, in the order of the steps."""
    folder: Path
    """The last checkpoint."""

    def restore(self, *, rank: int = 0, **parts: Any) -> None:
        """Give ``parts``, by the names they had in ``Rank.steps``, the state in which ``rank`` left them.

        Some of them are enough. Raises KeyError for a name that is not there, TypeError for a part that has
        no state, StoreError when the files cannot be read.
        """
        check_parts(parts)
        restore(self.folder, rank, parts, generators=False)
