"""What the strategy executor aims at, judged by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """A bound, and what was measured."""

    name: str
    """``"G1"`` to ``"G14"``."""
    what: str
    measured: float
    bound: float
    at_least: bool = False
    """Whether the bound is the least that is asked for, not the most."""

    @property
    def is_met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def __str__(self) -> str:
        sign, verdict = "≥" if self.at_least else "≤", "met" if self.is_met else "MISSED"
        return f"{self.name:4}{self.what:76}{self.measured:10.4g}   {sign} {self.bound:<8.4g}{verdict}"


def judged(goals: Sequence[Goal]) -> dict[str, dict[str, Any]]:
    """Print every goal and whether it is met; return the same for a results file."""
    for goal in goals:
        print(goal, flush=True)
    return {
        f"{goal.name}: {goal.what}": {
            "measured": goal.measured,
            "bound": goal.bound,
            "at_least": goal.at_least,
            "met": goal.is_met,
        }
        for goal in goals
    }
