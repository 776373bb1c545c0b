"""Eviction of a plan and its run: the policy by its name, or a maker of policies of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.errors import ArgumentError, UnknownNameError
from accelera.policy import POLICIES, EvictionPolicy, Knowledge, needs, prepare
from accelera.trace import Trace

PolicyMaker = Callable[[Knowledge], EvictionPolicy]
"""Makes a fresh policy from what is known: a class whose only argument is its ``Knowledge``, say."""
_SEQUENCE, _WHOLE_TRACE, _SCORED = 12, 80, 400
"""Bytes per access, with what is needed in passing: of ids and next uses, of all events, of scores."""
_BY_PASS = frozenset({"belady", "belady_size", "fifo", "largest", "lru", "mru", "planner"})
Scorer = Callable[[Trace], NDArray[np.float64]]
"""Returns one score per access of a trace; the highest is given up first."""


@dataclass(frozen=True)
class Eviction:
    """A choice of policy, of which a fresh one is made for each forecast and each run.

    >>> Eviction("lru").name
    'lru'
    """

    policy: str | PolicyMaker = "belady"
    """One of ``accelera.policy.POLICIES``, or a maker."""
    score: Scorer | None = None
    """What a policy that follows a score follows instead of its own; ``"learned"`` needs one."""

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
        """How plans and reports call it."""
        if isinstance(self.policy, str):
            return self.policy
        return getattr(self.policy, "__name__", type(self.policy).__name__)

    @property
    def access_bytes(self) -> int:
        """Bytes of memory that making the policy takes per access to come, at most."""
        if not isinstance(self.policy, str):
            return _WHOLE_TRACE
        wanted = set(needs(self.policy)) - {"capacity_bytes"}
        if self.score is not None or "score" in wanted:
            return _SCORED
        return _SEQUENCE if wanted <= {"next_use"} else _WHOLE_TRACE

    @property
    def by_pass(self) -> bool:
        """Whether it decides within a pass of a long run as if there were no others.

        Others remember who left, or weigh accesses by the whole run; they need the run in one pass.
        """
        return self.policy in _BY_PASS and self.score is None

    @property
    def needs_only_order(self) -> bool:
        """Whether the policy looks at the order of the accesses alone, so that a trace may hold no more."""
        return self.access_bytes == _SEQUENCE

    def create(self, trace: Trace, capacity_bytes: int) -> EvictionPolicy:
        """Return a fresh policy that knows ``trace``, the accesses to come."""
        if not isinstance(self.policy, str):
            return self.policy(Knowledge.of(trace, capacity_bytes))
        score = None if self.score is None else self.score(trace)
        return prepare(self.policy, trace, max(capacity_bytes, 1), score=score).policy()
