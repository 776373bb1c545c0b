"""Phases of an estimate that do not fit, with the plan of each offloaded: for command line and service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from accelera.errors import BudgetExceededError
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.estimate import Estimate
    from accelera.estimate._internal import Phase
    from accelera.offload import OffloadPlan

_PHASES = ("inference", "training")


class OffloadedPhase(NamedTuple):
    """Phase of an estimate, and how it would run offloaded."""

    phase: Phase
    plan: OffloadPlan | None
    refusal: Exception | None
    """Reason why there is no plan; None with a plan."""

    @classmethod
    def planned(cls, phase: Phase, budget: int | str | None, optimizer: Any) -> OffloadedPhase:
        """Plan a phase of inference or training within a budget; an error is stored as ``refusal``."""
        from accelera.offload import plan_offload

        training = phase.name == "training"
        try:
            plan = plan_offload(*phase.subject, budget=budget, train=training, optimizer=optimizer)
        except (BudgetExceededError, RuntimeError, TypeError, ValueError) as error:
            return cls(phase, None, error)
        return cls(phase, plan, None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        record: dict[str, Any] = {"phase": self.phase.name, "dtype": self.phase.dtype}
        if self.plan is not None:
            return {**record, "plan": self.plan.to_dict()}
        record["refused"] = str(self.refusal)
        if isinstance(self.refusal, BudgetExceededError):
            record["needed_bytes"] = self.refusal.needed_bytes
        return record

    def line(self) -> str:
        """Return the phase and its plan, or the refusal, in a sentence."""
        what = f"{self.phase.name} in {self.phase.dtype}, offloaded"
        if self.plan is None:
            return f"{what}, is not planned: {self.refusal}"
        plan = self.plan
        peaks = ", ".join(f"{format_bytes(size)} of {tier}" for tier, size in plan.peak_bytes.items())
        read, written = format_bytes(plan.steady.bytes_read), format_bytes(plan.steady.bytes_written)
        return f"{what}, takes {peaks}, and each pass reads {read} and writes {written}."


def offloads(estimate: Estimate, optimizer: Any) -> Iterator[OffloadedPhase]:
    """Yield the offload plan of each phase that does not fit, within the budget of the estimate."""
    for phase in estimate.phases:
        if not estimate.fits(phase) and phase.name in _PHASES:
            yield OffloadedPhase.planned(phase, estimate.budget_bytes, optimizer)


def as_dict(estimate: Estimate, planned: Iterable[OffloadedPhase]) -> dict[str, Any]:
    """Return an estimate and its offload plans as JSON-able values."""
    return {**estimate.to_dict(), "offload": [each.to_dict() for each in planned]}
