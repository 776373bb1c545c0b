"""What offloading would do for the phases of an estimate that do not fit its budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from accelera.errors import BudgetExceededError
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.interceptor import Estimate, Phase
    from accelera.offload import OffloadPlan

_PHASES = ("inference", "training")


class Offload(NamedTuple):
    """One phase, and how it would run offloaded."""

    phase: Phase
    plan: OffloadPlan | None
    refusal: Exception | None
    """Why it would not."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        found: dict[str, Any] = {"phase": self.phase.name, "dtype": self.phase.dtype}
        if self.plan is not None:
            return {**found, "plan": self.plan.to_dict()}
        found["refused"] = str(self.refusal)
        if isinstance(self.refusal, BudgetExceededError):
            found["needed_bytes"] = self.refusal.needed_bytes
        return found

    def line(self) -> str:
        """Return it in a sentence."""
        what = f"{self.phase.name} in {self.phase.dtype}, offloaded"
        if self.plan is None:
            return f"{what}, is not planned: {self.refusal}"
        plan = self.plan
        peaks = ", ".join(f"{format_bytes(size)} of {tier}" for tier, size in plan.peak_bytes.items())
        read, written = format_bytes(plan.steady.bytes_read), format_bytes(plan.steady.bytes_written)
        return f"{what}, takes {peaks}, and each pass reads {read} and writes {written}."


def offloads(found: Estimate, optimizer: Any) -> Iterator[Offload]:
    """Yield what offloading would do for each phase that does not fit; the same budget is the model's."""
    from accelera.offload import plan_offload

    for phase in found.phases:
        if found.fits(phase) or phase.name not in _PHASES:
            continue
        training = phase.name == "training"
        try:
            plan = plan_offload(
                *phase.subject, budget=found.budget_bytes, train=training, optimizer=optimizer
            )
        except (BudgetExceededError, RuntimeError, TypeError, ValueError) as error:
            yield Offload(phase, None, error)
        else:
            yield Offload(phase, plan, None)
