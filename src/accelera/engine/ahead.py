"""How a run goes about its data: who is evicted, and how far ahead it loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from accelera.errors import BudgetExceededError
from accelera.plan import Eviction, Plan

USUAL_WINDOW = 3
"""Steps under way at once: the one computed and two being loaded."""


@dataclass(frozen=True)
class Ahead:
    """What is known beforehand of how to run a plan well."""

    eviction: Eviction = field(default_factory=Eviction)
    """Who leaves the pool when it is full."""
    window: int = USUAL_WINDOW
    """Steps under way at once where data is loaded ahead, and where memory suffices for so many."""

    def planned(self, prefetch: bool, plan: Callable[[int], Plan]) -> Plan:
        """Return ``plan(window)``, with the usual window where the wanted one is too wide for the budget."""
        if not prefetch:
            return plan(1)
        if self.window <= USUAL_WINDOW:
            return plan(self.window)
        try:
            return plan(self.window)
        except BudgetExceededError:
            return plan(USUAL_WINDOW)


USUAL = Ahead()
