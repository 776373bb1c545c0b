"""What an estimate says: bytes by role, phase and element type, as values, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelera.errors import UnknownNameError
from accelera.interceptor.estimating import sentences
from accelera.interceptor.estimating.phase import Phase


@dataclass(frozen=True)
class Estimate:
    """Memory that a model takes, predicted from its shapes; ``estimate`` makes it."""

    model: str
    parameters: int
    """Numbers that the model holds, tied ones once."""
    batch: int | None
    """Rows at once; None where inputs were given."""
    context: int | None
    """Tokens per row; None where inputs were given."""
    optimizer: str
    kv_bytes_per_token: Mapping[str, int]
    """Bytes of the key-value cache per token and row, by element type; empty without a cache."""
    phases: tuple[Phase, ...]
    budget_bytes: int | None
    notes: tuple[str, ...] = ()
    """What could not be estimated, and why."""

    def phase(self, name: str, dtype: str | None = None) -> Phase:
        """Return one phase, in ``dtype`` or in the first there is.

        Raises
        ------
        UnknownNameError
            A phase or an element type that was not estimated.
        """
        for each in self.phases:
            if each.name == name and dtype in (None, each.dtype):
                return each
        known = [f"{each.name} in {each.dtype}" for each in self.phases]
        raise UnknownNameError.among("phase", name if dtype is None else f"{name} in {dtype}", known)

    def fits(self, phase: Phase) -> bool:
        """Whether ``phase`` fits the budget; without a budget everything does."""
        return self.budget_bytes is None or phase.peak_bytes <= self.budget_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; with a budget each phase says whether it ``fits``."""
        phases = [each.to_dict() for each in self.phases]
        if self.budget_bytes is not None:
            phases = [
                {**said, "fits": self.fits(each)} for said, each in zip(phases, self.phases, strict=True)
            ]
        return {
            "model": self.model,
            "parameters": self.parameters,
            "batch": self.batch,
            "context": self.context,
            "optimizer": self.optimizer,
            "kv_bytes_per_token": dict(self.kv_bytes_per_token),
            "budget_bytes": self.budget_bytes,
            "phases": phases,
            "notes": list(self.notes),
        }

    def table(self) -> str:
        """Return a line per phase: the most that each role takes, and the peak of all together."""
        return f"{self._title()}\n{sentences.table(self.phases, self.budget_bytes)}"

    def explain(self) -> str:
        """Return in sentences what is alive at each peak, and whether it fits the budget."""
        told = sentences.explain(self.phases, self.budget_bytes)
        cache = sentences.cache(self.kv_bytes_per_token)
        return "\n".join([*told, *cache, *self.notes])

    def _title(self) -> str:
        trains = any(each.name == "training" for each in self.phases)
        shape = "" if self.batch is None else f", batch {self.batch}"
        shape += "" if self.context is None else f", context {self.context}"
        shape += f", optimizer {self.optimizer}" if trains else ""
        return f"{self.model}, {sentences.count(self.parameters)} parameters{shape}"
