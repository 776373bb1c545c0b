"""An estimate as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from accelera.interceptor.estimating.phase import Phase
from accelera.text_table import text_table
from accelera.units import format_bytes

_HEADS = {"kv_cache": "kv cache", "optimizer_state": "optimizer"}


def table(phases: Sequence[Phase], budget_bytes: int | None) -> str:
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


def explain(phases: Sequence[Phase], budget_bytes: int | None) -> Iterator[str]:
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


def cache(bytes_per_token: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence per element type on what the key-value cache takes."""
    for dtype, size in bytes_per_token.items():
        yield f"The key-value cache in {dtype} takes {format_bytes(size)} per token and row."


def count(number: int) -> str:
    """Return a count in thousands, millions or billions.

    >>> count(124_439_808)
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
