"""An estimate as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.interceptor.estimating.report import Estimate, Phase

_HEADS = {"kv_cache": "kv cache", "optimizer_state": "optimizer"}


def table(found: Estimate) -> str:
    """Return the table: the most of each role by itself, and the peak of what is alive together."""
    roles = [role for role in found.phases[0].most if any(each.most[role] for each in found.phases)]
    head = ["", "", *(_HEADS.get(role, role) for role in roles), "peak"]
    rows = [head + ([] if found.budget_bytes is None else [f"in {format_bytes(found.budget_bytes)}"])]
    before = ""
    for phase in found.phases:
        cells = [format_bytes(phase.most[role]) if phase.most[role] else "-" for role in roles]
        row = [phase.dtype if phase.dtype != before else "", phase.name, *cells]
        rows.append([*row, format_bytes(phase.peak_bytes), *_verdict(found, phase)])
        before = phase.dtype
    return f"{_title(found)}\n{_aligned(rows)}"


def explain(found: Estimate) -> str:
    """Return in sentences what is alive at each peak, and whether it fits the budget."""
    return "\n".join([*(_told(found, phase) for phase in found.phases), *_cache(found), *found.notes])


def _title(found: Estimate) -> str:
    shape = "" if found.batch is None else f", batch {found.batch}"
    shape += "" if found.context is None else f", context {found.context}"
    trains = any(each.name == "training" for each in found.phases)
    shape += f", optimizer {found.optimizer}" if trains else ""
    return f"{found.model}, {_count(found.parameters)} parameters{shape}"


def _count(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _verdict(found: Estimate, phase: Phase) -> list[str]:
    if found.budget_bytes is None:
        return []
    if found.fits(phase):
        return ["fits"]
    return [f"{format_bytes(phase.peak_bytes - found.budget_bytes)} over"]


def _told(found: Estimate, phase: Phase) -> str:
    parts = [f"{format_bytes(size)} {_HEADS.get(role, role)}" for role, size in phase.at_peak.items() if size]
    where = f" in {phase.peak_op}" if phase.peak_op else ""
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in phase.largest[:3])
    said = f"{phase.name} in {phase.dtype} takes at most {format_bytes(phase.peak_bytes)}{where}: "
    verdict = "".join(f"; {each}" for each in _verdict(found, phase))
    return f"{said}{', '.join(parts)} (largest: {largest}){verdict}."


def _cache(found: Estimate) -> Iterator[str]:
    for dtype, size in found.kv_bytes_per_token.items():
        yield f"The key-value cache in {dtype} takes {format_bytes(size)} per token and row."


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with columns of equal width, the first two to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
