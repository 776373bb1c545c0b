"""Verdict on a trace in a budget: the fit, and the cost of what does not fit, in figures and words."""

from __future__ import annotations

from dataclasses import dataclass

from accelera.views.comparison import PLAIN
from accelera.views.facts import Per
from accelera.views.view import JsonView


@dataclass(frozen=True)
class LoadedAhead:
    """The same budget and policy, with operands loaded before their step begins."""

    lookahead: int
    """Steps that are loaded ahead."""
    seconds: float
    """Per unit."""
    slowdown: float
    moved_bytes: int
    """Per unit; more than without loading ahead, for room is taken earlier."""


@dataclass(frozen=True)
class Verdict(JsonView):
    """Need of a trace, what is missing or left, and what that costs; figures per unit, first load aside.

    What only a schedule that runs can have is None where none runs.
    """

    fits: bool
    """Whether everything alive at once fits the budget: needs <= budget."""
    runs: bool
    """Whether the operands of every step fit the budget, so that a schedule exists: floor <= budget."""
    needs_bytes: int
    budget_bytes: int
    short_bytes: int
    """Bytes that are missing; negative or 0: bytes that are left."""
    floor_bytes: int
    floor_op: str
    """Operation of the step that has the most operands, in words."""
    per: Per
    units: int
    compute_seconds: float
    """Arithmetic alone, which is what room for everything would take."""
    best_policy: str | None = None
    """Of those compared, the one that moves the fewest bytes."""
    best_needs_schedule: bool | None = None
    moved_bytes: int | None = None
    seconds: float | None = None
    slowdown: float | None = None
    """Seconds over ``compute_seconds``; None also where arithmetic takes no time."""
    ahead: LoadedAhead | None = None
    """What loading ahead would save, where that is more than 3 %."""
    plain_policy: str = PLAIN
    plain_moved_bytes: int | None = None
    ratio: float | None = None
    """Bytes of the plain policy over those of the best; None where the best moves nothing and it does."""
    least_bytes: int | None = None
    headline: str = ""
    sentence: str = ""
