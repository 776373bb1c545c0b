"""Whether a better policy would help at all."""

from __future__ import annotations

from dataclasses import dataclass

from accelera.simulator.bounds import lower_bound
from accelera.simulator.replay import simulate
from accelera.trace import Trace
from accelera.units import format_bytes

WORTHWHILE = 0.05
"""Share of the traffic below which a change of policy is not worth advising."""


@dataclass(frozen=True)
class Gain:
    """Distance between a plain policy, the offline planner and the least possible; sizes in bytes."""

    capacity_bytes: int
    policy: str
    """The plain policy."""
    moved_bytes: int
    """What it moves."""
    planned_bytes: int
    """What the policy ``planner`` moves."""
    lower_bound_bytes: int
    """What any schedule moves at least."""

    @property
    def reachable(self) -> float:
        """Share of the traffic that the planner saves; negative where it moves more."""
        return 1 - self.planned_bytes / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def possible(self) -> float:
        """Share of the traffic that no schedule can save more than."""
        return 1 - self.lower_bound_bytes / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def worthwhile(self) -> bool:
        """Whether the planner saves 5 % or more."""
        return self.reachable >= WORTHWHILE

    def explain(self) -> str:
        """Return the verdict in words."""
        at = f"at {format_bytes(self.capacity_bytes)}"
        moves = f"{self.policy} moves {format_bytes(self.moved_bytes)}"
        if self.moved_bytes == self.lower_bound_bytes:
            return f"{at} {moves}, and no schedule moves less"
        least = f"no schedule moves less than {format_bytes(self.lower_bound_bytes)}"
        if self.worthwhile:
            return (
                f"{at} {moves}, the planner {format_bytes(self.planned_bytes)} ({self.reachable:.0%} less); "
                f"{least}"
            )
        if self.possible < WORTHWHILE:
            advice = "more memory, a smaller batch or recomputation would help"
            return f"{at} no policy helps: {moves}, {least} ({self.possible:.1%} less); {advice}"
        planned = f"the planner {format_bytes(self.planned_bytes)}"
        return f"{at} the planner does not help: {moves}, {planned}; {least}"


def gain(trace: Trace, capacity_bytes: int, policy: str = "lru") -> Gain:
    """Return how much less than ``policy`` a better one could move for ``trace`` at this capacity.

    Stacks of activations are read in the reverse order of their making, and there plain policies are often
    within a few percent of the bound: ``Gain.worthwhile`` and ``Gain.explain`` say so.

    Parameters
    ----------
    trace
        The accesses, in order.
    capacity_bytes
        Bytes of the first tier.
    policy
        Name of the policy to improve on.

    Raises
    ------
    UnknownNameError
        A name that there is not.
    ValueError
        For a negative capacity.
    """
    moved = simulate(trace, capacity_bytes, policy).moved_bytes
    planned = simulate(trace, capacity_bytes, "planner").moved_bytes
    return Gain(capacity_bytes, policy, moved, planned, lower_bound(trace, capacity_bytes))
