"""Limits of a plan: the memory it may fill, the policy that evicts, and the refusal when nothing fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, final

import numpy as np
from numpy.typing import NDArray

from accelera.errors import ArgumentError, BudgetExceededError, UnknownNameError
from accelera.policy import POLICIES, EvictionPolicy, Knowledge
from accelera.policy._internal import needs, prepare
from accelera.trace import Trace
from accelera.units import format_bytes

PolicyMaker = Callable[[Knowledge], EvictionPolicy]
"""Makes a fresh policy from what is known: a class whose only argument is its ``Knowledge``, say."""
_SEQUENCE, _WHOLE_TRACE, _SCORED = 12, 80, 400
"""Bytes per access, with what is needed in passing: of ids and next uses, of all events, of scores."""
_BY_PASS = frozenset({"belady", "belady_size", "fifo", "largest", "lru", "mru", "planner"})
Scorer = Callable[[Trace], NDArray[np.float64]]
"""Returns one score per access of a trace; the buffer of the highest is evicted first."""


@dataclass(frozen=True)
class Eviction:
    """An eviction policy by name or maker; a fresh one is made for each forecast and each run.

    >>> Eviction("lru").name
    'lru'
    """

    policy: str | PolicyMaker = "belady"
    """One of ``accelera.policy.POLICIES``, or a maker."""
    score: Scorer | None = None
    """Scores for a policy that follows scores, instead of its default; ``"learned"`` needs them."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str):
            if self.policy not in POLICIES:
                raise UnknownNameError.among("policy", self.policy, POLICIES)
        elif not callable(self.policy):
            raise ArgumentError(
                f"[policy] {self.policy!r} can serve only once, and a plan tries several policies before its "
                f"run uses another: give a name, or what makes one from its Knowledge, such as a class"
            )

    @property
    def name(self) -> str:
        """Its name in plans and reports."""
        if isinstance(self.policy, str):
            return self.policy
        return getattr(self.policy, "__name__", type(self.policy).__name__)

    @property
    def access_bytes(self) -> int:
        """Upper bound of the bytes that making the policy takes per access to come."""
        if not isinstance(self.policy, str):
            return _WHOLE_TRACE
        wanted = set(needs(self.policy)) - {"capacity_bytes"}
        if self.score is not None or "score" in wanted:
            return _SCORED
        return _SEQUENCE if wanted <= {"next_use"} else _WHOLE_TRACE

    @property
    def by_pass(self) -> bool:
        """Whether it decides alike with the accesses of one pass only as with those of the whole run.

        Other policies remember evicted buffers, or weigh accesses over the whole run: they need one pass.
        """
        return self.policy in _BY_PASS and self.score is None

    @property
    def needs_only_order(self) -> bool:
        """Whether the policy needs only the order of the accesses: its trace can leave out the rest."""
        return self.access_bytes == _SEQUENCE

    def create(self, trace: Trace, capacity_bytes: int) -> EvictionPolicy:
        """Return a fresh policy that knows ``trace``, the accesses to come."""
        if not isinstance(self.policy, str):
            return self.policy(Knowledge.of(trace, capacity_bytes))
        score = None if self.score is None else self.score(trace)
        return prepare(self.policy, trace, max(capacity_bytes, 1), score=score).policy()


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
    """Bytes of RAM for other things than blocks, by purpose."""
    tier: str = "ram"
    """Where blocks lie: ``"ram"`` or a device's name."""
    host_staging_bytes: int = 0
    """Bytes of RAM needed besides, when blocks lie elsewhere."""
    window: int = WINDOW
    """Steps that may be under way at once; with 1 nothing is loaded ahead."""
    eviction: Eviction = field(default_factory=Eviction)
    """Policy that evicts blocks when the pool is full."""

    @property
    def in_ram(self) -> bool:
        """Whether blocks lie in RAM, like the run's own records and all reserved bytes."""
        return self.tier == "ram"

    def charged(self, records_bytes: int) -> int:
        """Return the bytes that a run's own records take from the blocks."""
        return records_bytes if self.in_ram else 0

    def refuse(self, operation: str, problem: str, tiles: str, need_bytes: int) -> NoReturn:
        """Raise BudgetExceededError: ``tiles`` of ``problem`` need ``need_bytes``, more than the capacity."""
        reserved = sum(self.reserved.values()) if self.in_ram else 0
        needed = need_bytes + reserved
        budget = self.capacity_bytes + reserved if self.budget_bytes is None else self.budget_bytes
        raise BudgetExceededError(
            f"[{operation}] {problem} does not fit a budget of {format_bytes(budget)} ({budget} bytes): "
            f"{tiles} and working memory need {format_bytes(needed)} ({needed} bytes)"
            f"{self._remedy(needed)} a budget of at least {needed} bytes",
            needed_bytes=needed,
            budget_bytes=budget,
        )

    def _remedy(self, needed_bytes: int) -> str:
        """Return the largest avoidable part of the memory with the argument that avoids it."""
        result, staging = self.reserved.get("result", 0), self.reserved.get("staging", 0)
        if not self.in_ram:
            return "; give"
        if result and result >= staging:
            return (
                f"; the {format_bytes(result)} result is kept in RAM: pass out= with a file name to write "
                "it to a file, or give"
            )
        if staging > needed_bytes // 2:
            return (
                f", of which {format_bytes(staging)} hold whole chunks while they are read and decoded; "
                "store the operand in smaller chunks (engine.copy(x, out='x.zarr', chunks=...)), or give"
            )
        return "; give"
