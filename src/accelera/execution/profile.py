"""What is known of a batch of work before it runs (seed 002)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import final


@final
@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """A batch of independent tasks.

    Raises
    ------
    ValueError
        When a count is negative or a share is outside 0 … 1.
    TypeError
        When a count is no whole number, or a share no number.
    """

    task_count: int
    """Number of tasks."""
    memory_per_task: int = 0
    """Bytes that one task takes on the device; 0: not known."""
    complexity: float = 0.5
    """Arithmetic of a task, from 0 (trivial) to 1 (heavy)."""
    parallelization: float = 0.8
    """Share of the work that can run side by side, from 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("task_count", "memory_per_task"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if not (isinstance(self.complexity, Real) and isinstance(self.parallelization, Real)):
            raise TypeError(
                f"[WorkloadProfile] complexity={self.complexity!r}, parallelization={self.parallelization!r}:"
                f" both are numbers from 0.0 to 1.0"
            )
        if self.task_count < 0 or self.memory_per_task < 0:
            raise ValueError(
                f"[WorkloadProfile] task_count={self.task_count}, memory_per_task={self.memory_per_task}:"
                f" neither can be negative"
            )
        if not (0 <= self.complexity <= 1 and 0 <= self.parallelization <= 1):
            raise ValueError(
                f"[WorkloadProfile] complexity={self.complexity}, parallelization={self.parallelization}:"
                f" both are shares from 0.0 to 1.0"
            )


def _whole(name: str, count: object) -> int:
    if isinstance(count, Integral):
        return int(count)
    remedy = (
        "parse_bytes('3MiB') of accelera.units reads sizes from text" if isinstance(count, str) else "int"
    )
    raise TypeError(f"[WorkloadProfile] {name}={count!r}: give a whole number; {remedy}")
