"""What was decided for a batch of work, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

from accelera.execution.pace import Pace
from accelera.execution.strategy import ExecutionStrategy


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """A strategy, the rule that chose it and what it was compared with."""

    strategy: ExecutionStrategy
    rule: str
    """``"given"``, a leaf of the seed's tree, ``"stream"``, ``"learned rates"``, or, where a batch runs on
    both sides to measure them, ``"gathering samples"`` or ``"sampling anew"``."""
    reasons: tuple[str, ...] = ()
    dynamic: bool = False
    """Whether GPU and CPU pull tasks as fast as they can, whatever the shares say."""
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each strategy would take, by name; empty while nothing has been measured."""
    samples: Mapping[str, int] = field(default_factory=dict)
    """Measured pieces behind the prediction, by device."""
    pace: Pace | None = None
    """How fast both sides are, where they pull at a pace that is known beforehand."""

    def on_cpu(self) -> Decision:
        """Return the same with everything on the CPU, as when a GPU has failed."""
        return replace(self, strategy=ExecutionStrategy.CpuOnly, dynamic=False, pace=None)

    def __str__(self) -> str:
        lines = [f"{self.strategy}: {self.rule}", *(f"  {reason}" for reason in self.reasons)]
        lines += [f"  {name}: {seconds:.3g} s predicted" for name, seconds in self.predicted_s.items()]
        return "\n".join(lines)
