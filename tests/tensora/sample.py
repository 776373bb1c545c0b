"""One sample of an entry of the op table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelera.tensora.core import native


@dataclass(frozen=True)
class Sample:
    """One call of an operation."""

    call: Callable[..., Any]
    reference: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    low: float = -2.0
    high: float = 2.0
    apart: float = 0.0
    """Values keep this distance from each other and from integers: the operation jumps or bends there."""
    complexes: bool = False
    """Whether it is sampled with complex numbers too."""
    integers: bool = True
    """Whether it is sampled with integers too (where it is defined for them)."""
    gradient: bool = True
    broadcasts: bool = False
    fixed: dict[int, Any] = field(default_factory=dict)
    """Inputs that are given as they are."""

    def inputs(self, dtype: str, seed: int = 0) -> list[Any]:
        random = np.random.default_rng(seed)
        made = []
        for i, shape in enumerate(self.shapes):
            if i in self.fixed:
                made.append(np.asarray(self.fixed[i]))
                continue
            values = random.uniform(self.low, self.high, shape)
            if self.apart:
                n = values.size
                spread = (np.arange(n) + 0.5) / n * (self.high - self.low) + self.low + 0.07 + 0.013 * i
                values = random.permutation(spread).reshape(shape)
            if dtype.startswith("complex"):
                values = values + 1j * random.uniform(self.low, self.high, shape)
            if dtype.startswith("u"):
                values = np.abs(values)
            if dtype == "bool":
                values = values > 0
            kept = "float32" if dtype in ("bfloat16", "float16") else dtype
            made.append(np.asarray(values).astype(kept))
        return made


def one(name: str, reference: Any, **options: Any) -> list[Sample]:
    """Return the sample of an operation of one tensor."""
    return [Sample(getattr(native, name), reference, ((3, 4),), **options)]


def two(name: str, reference: Any, **options: Any) -> list[Sample]:
    """Return samples of an operation of two tensors, one of them with broadcasting."""
    call = getattr(native, name)
    return [
        Sample(call, reference, ((3, 4), (3, 4)), **options),
        Sample(call, reference, ((3, 1), (4,)), broadcasts=True, **options),
    ]
