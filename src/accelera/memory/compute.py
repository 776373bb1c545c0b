"""What computes: the arithmetic speed above a hierarchy, as far as time estimates need it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Compute:
    """A roofline: a step is bound by its arithmetic or by the bytes it touches."""

    flops_per_s: float
    """Floating-point operations per second."""
    bandwidth_bytes_per_s: float = float("inf")
    """Rate at which the first tier feeds the arithmetic."""
    launch_s: float = 0.0
    """Cost of starting one step."""

    def seconds(self, flops: NDArray[np.float64], touched_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds of steps from their arithmetic and the bytes they touch; shapes (steps,)."""
        bound = np.maximum(flops / self.flops_per_s, touched_bytes / self.bandwidth_bytes_per_s)
        seconds: NDArray[np.float64] = bound + self.launch_s
        return seconds
