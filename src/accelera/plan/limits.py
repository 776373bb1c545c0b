"""Limits of a plan: the memory it may fill, what else takes memory, and the refusal when nothing fits."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar, cast, final

from accelera.errors import BudgetExceededError
from accelera.plan.eviction import Eviction
from accelera.units import format_bytes

WINDOW = 3
"""Steps under way at once by default: the one computed and two being loaded."""


@final
@dataclass(frozen=True)
class PlanLimits:
    """Memory that a plan may fill, and the rules by which it is filled."""

    capacity_bytes: int
    """Room for blocks."""
    budget_bytes: int | None = None
    """The budget that was given, for reports; None when none was."""
    reserved: Mapping[str, int] = field(default_factory=dict)
    """Bytes of RAM kept for what is no block, by what it is for."""
    tier: str = "ram"
    """Where blocks lie: ``"ram"`` or a device's name."""
    host_staging_bytes: int = 0
    """Bytes of RAM needed besides, when blocks lie elsewhere."""
    window: int = WINDOW
    """Steps that may be under way at once; with 1 nothing is loaded ahead."""
    eviction: Eviction = field(default_factory=Eviction)
    """Policy that evicts blocks when the room is full."""

    @property
    def in_ram(self) -> bool:
        """Whether blocks lie in RAM, where the run's own records and all that is reserved lie too."""
        return self.tier == "ram"

    def charged(self, records_bytes: int) -> int:
        """Return the bytes that a run's own records take from the blocks."""
        return records_bytes if self.in_ram else 0

    def refuse(self, operation: str, problem: str, tiles: str, need_bytes: int) -> NoReturn:
        """Raise BudgetExceededError: ``tiles`` of ``problem`` need ``need_bytes``, and there is less room."""
        beside = sum(self.reserved.values()) if self.in_ram else 0
        needed = need_bytes + beside
        asked = self.capacity_bytes + beside if self.budget_bytes is None else self.budget_bytes
        raise BudgetExceededError(
            f"[{operation}] {problem} does not fit a budget of {format_bytes(asked)} ({asked} bytes): "
            f"{tiles} need {format_bytes(needed)} ({needed} bytes), of which {format_bytes(beside)} is "
            f"reserved for what is no tile; give a budget of at least {needed} bytes",
            needed_bytes=needed,
            budget_bytes=asked,
        )


Planner = TypeVar("Planner", bound=Callable[..., Any])


def with_older_keywords(planner: Planner) -> Planner:
    """Return a planner that still takes the fields of its limits as keywords, and warns of them."""
    names = [each.name for each in fields(PlanLimits)]

    @functools.wraps(planner)
    def plan(problem: Any, limits: PlanLimits | None = None, cost: Any = None, **keywords: Any) -> Any:
        if limits is None:
            words = (
                f"{planner.__name__}(capacity_bytes=...) is {planner.__name__}(problem, PlanLimits(...)) now"
            )
            warnings.warn(words, DeprecationWarning, stacklevel=2)
            given = {name: keywords.pop(name, None) for name in names}
            limits = PlanLimits(**{name: each for name, each in given.items() if each is not None})
        return planner(problem, limits, cost, **keywords)

    return cast(Planner, plan)
