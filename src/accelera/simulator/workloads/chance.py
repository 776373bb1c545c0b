"""Random numbers that are the same everywhere: PCG64's doubles and exact arithmetic on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK = 512


class Chance:
    """A seeded source of chance."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._ready: list[float] = []

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        if not self._ready:
            self._ready = self._generator.random(_BLOCK).tolist()
        return self._ready.pop()

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), shape (count,)."""
        return self._generator.random(count)

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to ``bound - 1``."""
        return int(self.uniform() * bound)
