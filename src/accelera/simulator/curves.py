"""What is drawn of a sweep: bytes moved over capacity, one curve per policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Curves:
    """Bytes moved per policy and capacity; all sizes in bytes."""

    capacities: tuple[int, ...]
    """Rising."""
    moved: Mapping[str, NDArray[np.int64]]
    """Per policy, shape (capacities,)."""
    bounds: NDArray[np.int64] | None
    """What any schedule moves at least, shape (capacities,)."""
    best: str
    """The policy that moves the fewest bytes by and large."""
    knee: int
    """Of the best policy's curve."""
    without_stalls: int
    """From here on the best policy waits for nothing but what it would wait for anyway."""

    def ranking(self) -> list[str]:
        """Return the policies, those that move fewer bytes by and large first."""
        return sorted(self.moved, key=lambda name: (float(np.log1p(self.moved[name]).sum()), name))
