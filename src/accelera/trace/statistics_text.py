"""A trace's statistics as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from accelera.units import format_bytes

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 50

Facts = Mapping[str, Any]


def lines_of(found: Facts) -> Iterator[str]:
    """Yield the lines for the dictionary of a ``TraceStatistics``."""
    yield from _counts(found)
    yield from _memory(found)
    yield from _reuse(found["reuse"])
    yield from _lru(found["lru"])


def _row(name: str, text: str) -> str:
    return f"{name:<16}{text}"


def _counts(found: Facts) -> Iterator[str]:
    counts = found["counts"]
    if found["model_type"]:
        yield _row("model", found["model_type"])
    reads = f"{counts['reads']:,} reads of {format_bytes(counts['read_bytes'])}"
    writes = f"{counts['writes']:,} writes of {format_bytes(counts['written_bytes'])}"
    yield _row("accesses", f"{counts['accesses']:,}: {reads}, {writes}")
    yield _row("steps", f"{counts['steps']:,}")
    there = f"{format_bytes(counts['compulsory_bytes'])} exist beforehand"
    made = f"{format_bytes(counts['created_bytes'])} are made on the way"
    yield _row(
        "footprint",
        f"{counts['buffers']:,} buffers, {format_bytes(counts['footprint_bytes'])}: {there}, {made}",
    )


def _memory(found: Facts) -> Iterator[str]:
    peak, floor = found["peak"], found["floor"]
    yield _row("peak alive", f"{format_bytes(peak['size_bytes'])} in {_step(peak)}")
    roles = (f"{role or 'unknown'} {format_bytes(size)}" for role, size in peak["by_role"].items())
    yield _row("  by role", ", ".join(roles))
    yield _row("hard floor", f"{format_bytes(floor['size_bytes'])} in {_step(floor)}: one step's operands")
    yield _row("alive", _sparkline(found["live_bytes"]))
    yield _row("working set", _sparkline(found["working_set_bytes"]))
    if peak["top_live"]:
        yield from ("", f"{'largest at the peak':<40}{'role':<18}{'size':>10}")
        for each in peak["top_live"]:
            yield f"{each['name'][-39:]:<40}{each['role']:<18}{format_bytes(each['size_bytes']):>10}"


def _reuse(reuse: Facts | None) -> Iterator[str]:
    if reuse is None:
        return
    yield ""
    yield _row("reuse entropy", f"{reuse['entropy_bits']:.2f} bits")
    yield _row("locality", f"{reuse['temporal_locality']:.1%} of reuses have fewer than 5 others in between")
    total = max(sum(each["reuses"] for each in reuse["distances"]), 1)
    yield f"{'others in between':<24}{'reuses':>12}{'share':>9}"
    for each in reuse["distances"]:
        low, high = each["from"], each["to"]
        name = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        yield f"{name:<24}{each['reuses']:>12,}{each['reuses'] / total:>9.1%}"


def _lru(lru: Facts) -> Iterator[str]:
    yield ""
    if lru["sampled_fraction"] < 1:
        share, error = lru["sampled_fraction"], lru["standard_error"]
        yield f"from {share:.2%} of the buffers: miss ratios are likely off by {error:.4f}"
    yield f"{'LRU with':<16}{'miss ratio':>12}{'bytes missed':>14}"
    for capacity, ratio, size in zip(
        lru["capacity_bytes"], lru["miss_ratio"], lru["miss_bytes"], strict=True
    ):
        yield f"{format_bytes(capacity):<16}{ratio:>12.4f}{format_bytes(size):>14}"


def _step(place: Facts) -> str:
    return f"step {place['step']:,}" + (f" ({place['op']})" if place["op"] else "")


def _sparkline(values: Sequence[int]) -> str:
    """Draw values as a row of bars, with what the highest stands for."""
    most, columns = max([*values, 1]), min(_COLUMNS, len(values))
    edges = [i * len(values) // columns for i in range(columns + 1)] if columns else []
    heights = (max(values[begin:end]) for begin, end in pairwise(edges))
    bars = "".join(_BARS[-(-height * (len(_BARS) - 1) // most)] for height in heights)
    return f"{bars} up to {format_bytes(max(values, default=0))}".lstrip()
