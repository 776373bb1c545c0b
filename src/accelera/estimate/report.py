"""Estimate of a model: bytes by role, phase and element type, as values, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelera._result_html import MemoryBar, result_html
from accelera._text_table import text_table
from accelera.errors import UnknownNameError
from accelera.trace import Trace
from accelera.units import format_bytes


@dataclass(frozen=True)
class Phase:
    """Memory of inference, generation or training in one element type; sizes in bytes."""

    name: str
    """``inference``, ``generation`` or ``training``."""
    dtype: str
    """``float32``, ``bfloat16`` …, ``mixed`` or ``float8``."""
    most: Mapping[str, int]
    """The most that each role takes at any time, by the names of ``ROLES``."""
    at_peak: Mapping[str, int]
    """What each role takes when the most is alive together; the sum is ``peak_bytes``."""
    peak_bytes: int
    """The most that is alive at once."""
    peak_op: str
    """The operator that runs then."""
    largest: tuple[tuple[str, int], ...]
    """The largest tensors alive then, by name."""
    outputs_bytes: int
    """What nothing but the kept outputs of the model held: 0 where they are not kept past the loss."""
    trace: Trace = field(repr=False, compare=False)
    """Every access of it, for ``accelera.simulate`` and ``accelera.advise``."""
    subject: tuple[Any, Any] = field(repr=False, compare=False)
    """The model without contents and its inputs, for ``accelera.plan_offload``."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-able values."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "most": dict(self.most),
            "at_peak": dict(self.at_peak),
            "peak_bytes": self.peak_bytes,
            "peak_op": self.peak_op,
            "largest": [list(each) for each in self.largest],
            "outputs_bytes": self.outputs_bytes,
        }


_SHOWN_PHASES = 6
"""Phases that a repr and a notebook show."""


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

    def __repr__(self) -> str:
        peaks = [f"{each.name} {each.dtype} {format_bytes(each.peak_bytes)}" for each in self.phases]
        more = [f"{len(peaks) - _SHOWN_PHASES} more"] if len(peaks) > _SHOWN_PHASES else []
        return f"<Estimate {self._title()}: {', '.join(peaks[:_SHOWN_PHASES] + more)}>"

    def _repr_html_(self) -> str:
        bars = [
            MemoryBar(f"peak of {each.name} in {each.dtype}", each.at_peak, self.budget_bytes)
            for each in self.phases[:_SHOWN_PHASES]
        ]
        return result_html(repr(self), self.table(), bars)

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
        """Return whether ``phase`` fits the budget; without a budget everything does."""
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
        return f"{self._title()}\n{_table(self.phases, self.budget_bytes)}"

    def explain(self) -> str:
        """Return in sentences what is alive at each peak, and whether it fits the budget."""
        sentences = _sentences(self.phases, self.budget_bytes)
        cache = _cache_sentences(self.kv_bytes_per_token)
        return "\n".join([*sentences, *cache, *self.notes])

    def _title(self) -> str:
        trains = any(each.name == "training" for each in self.phases)
        shape = "" if self.batch is None else f", batch {self.batch}"
        shape += "" if self.context is None else f", context {self.context}"
        shape += f", optimizer {self.optimizer}" if trains else ""
        return f"{self.model}, {_count(self.parameters)} parameters{shape}"


_HEADS = {"kv_cache": "kv cache", "optimizer_state": "optimizer"}


def _table(phases: Sequence[Phase], budget_bytes: int | None) -> str:
    """Return the most of each role by itself, and the peak of what is alive together, a line per phase."""
    roles = [role for role in phases[0].most if any(each.most[role] for each in phases)]
    head = ["", "", *(_HEADS.get(role, role) for role in roles), "peak"]
    rows = [head + ([] if budget_bytes is None else [f"in {format_bytes(budget_bytes)}"])]
    before = ""
    for phase in phases:
        cells = [format_bytes(phase.most[role]) if phase.most[role] else "-" for role in roles]
        row = [phase.dtype if phase.dtype != before else "", phase.name, *cells]
        rows.append([*row, format_bytes(phase.peak_bytes), *_verdict(phase, budget_bytes)])
        before = phase.dtype
    return text_table(rows, left=2)


def _sentences(phases: Sequence[Phase], budget_bytes: int | None) -> Iterator[str]:
    """Yield a sentence per phase: what is alive at its peak, and whether it fits the budget."""
    for phase in phases:
        parts = [
            f"{format_bytes(size)} {_HEADS.get(role, role)}" for role, size in phase.at_peak.items() if size
        ]
        where = f" in {phase.peak_op}" if phase.peak_op else ""
        largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in phase.largest[:3])
        said = f"{phase.name} in {phase.dtype} takes at most {format_bytes(phase.peak_bytes)}{where}: "
        verdict = "".join(f"; {each}" for each in _verdict(phase, budget_bytes))
        yield f"{said}{', '.join(parts)} (largest: {largest}){verdict}."


def _cache_sentences(bytes_per_token: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence per element type on what the key-value cache takes."""
    for dtype, size in bytes_per_token.items():
        yield f"The key-value cache in {dtype} takes {format_bytes(size)} per token and row."


def _count(number: int) -> str:
    """Return a count in thousands, millions or billions.

    >>> _count(124_439_808)
    '124.4 M'
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _verdict(phase: Phase, budget_bytes: int | None) -> list[str]:
    if budget_bytes is None:
        return []
    over = phase.peak_bytes - budget_bytes
    return ["fits" if over <= 0 else f"{format_bytes(over)} over"]
