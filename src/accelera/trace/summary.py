"""Statistics of a trace, as figures and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.trace.access import Kind
from accelera.trace.miss_ratio import MissRatioCurve, miss_ratio_curve, sampled_miss_ratio_curve
from accelera.trace.occupancy import LiveTensor, Occupancy, OpWorkingSet, largest_op, working_sets
from accelera.trace.reuse import reuse_entropy, stack_distances, temporal_locality
from accelera.trace.trace import Trace
from accelera.units import format_bytes

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 50

Facts = Mapping[str, Any]


def lines_of(found: Facts) -> Iterator[str]:
    """Yield the lines for the dictionary of a ``TraceStatistics``."""
    yield from _count_lines(found)
    yield from _memory(found)
    yield from _reuse(found["reuse"])
    yield from _lru(found["lru"])


def _row(name: str, text: str) -> str:
    return f"{name:<16}{text}"


def _count_lines(found: Facts) -> Iterator[str]:
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


CURVE_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Capacities at which the curve is printed, as shares of the footprint."""


@dataclass(frozen=True)
class Counts:
    """How much there is; sizes in bytes."""

    accesses: int
    reads: int
    writes: int
    buffers: int
    steps: int
    read_bytes: int
    written_bytes: int
    footprint_bytes: int
    """All distinct buffers together."""
    compulsory_bytes: int
    """Buffers that are read first: they exist beforehand, so any tier must fetch them once."""
    created_bytes: int
    """Buffers that are written first: nothing needs to be fetched."""


@dataclass(frozen=True)
class Peak:
    """The moment when the most bytes are alive."""

    size_bytes: int
    step: int
    op: str
    by_role: dict[str, int]
    """Bytes by role, largest first."""
    top_live: list[LiveTensor]
    """The largest buffers alive."""


@dataclass(frozen=True, eq=False)
class Reuse:
    """How far apart the uses of a buffer are."""

    histogram: NDArray[np.int64]
    """Entry ``d`` counts the reuses with ``d`` distinct other buffers in between."""
    entropy_bits: float
    """Shannon entropy of the distances."""
    temporal_locality: float
    """Share of the reuses with fewer than five others in between."""


@dataclass(frozen=True, eq=False)
class TraceStatistics:
    """Statistics of a trace."""

    model_type: str
    counts: Counts
    peak: Peak
    floor: OpWorkingSet
    """The step with the largest working set: no tier smaller than that can hold it."""
    reuse: Reuse | None
    """None where only a sample was looked at."""
    curve: MissRatioCurve
    """Misses of LRU at every capacity."""
    working_set_bytes: NDArray[np.int64]
    """Distinct bytes accessed in each of equal runs of steps, shape (windows,)."""
    live_bytes: NDArray[np.int64]
    """Most bytes alive in each of them, shape (windows,)."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values, the curve at a few capacities."""
        return {
            "model_type": self.model_type,
            "counts": vars(self.counts),
            "peak": {**vars(self.peak), "top_live": [each._asdict() for each in self.peak.top_live]},
            "floor": self.floor._asdict(),
            "reuse": None if self.reuse is None else self._reuse(self.reuse),
            "lru": self._lru(),
            "working_set_bytes": self.working_set_bytes.tolist(),
            "live_bytes": self.live_bytes.tolist(),
        }

    def table(self) -> str:
        """Return the lines for people."""
        return "\n".join(lines_of(self.to_dict()))

    def _reuse(self, reuse: Reuse) -> dict[str, Any]:
        return {
            "entropy_bits": reuse.entropy_bits,
            "temporal_locality": reuse.temporal_locality,
            "distances": list(_doubling(reuse.histogram)),
        }

    def _lru(self) -> dict[str, Any]:
        curve = self.curve
        capacities = [round(share * self.counts.footprint_bytes) for share in CURVE_SHARES]
        return {
            "sampled_fraction": curve.sampled_fraction,
            "standard_error": curve.standard_error,
            "capacity_bytes": capacities,
            "miss_ratio": curve.miss_ratio(capacities).tolist(),
            "miss_bytes": curve.miss_bytes(capacities).tolist(),
        }


def statistics(
    trace: Trace, *, sample: float | None = None, windows: int = 100, top: int = 10
) -> TraceStatistics:
    """Describe a trace.

    Parameters
    ----------
    trace
        The accesses, in order.
    sample
        Share of the buffers from which the miss-ratio curve is estimated (SHARDS); None: exact.
    windows
        Most runs of steps into which the course over time is divided.
    top
        How many of the tensors alive at the peak to list.
    """
    windows = min(windows, trace.step_count)
    occupancy = Occupancy(trace)
    curve, reuse = _curve_and_reuse(trace, sample)
    return TraceStatistics(
        trace.model_type,
        _counts(trace),
        _peak(occupancy, top),
        largest_op(trace),
        reuse,
        curve,
        working_sets(trace, windows),
        _by_window(occupancy.per_step(), windows),
    )


def _curve_and_reuse(trace: Trace, sample: float | None) -> tuple[MissRatioCurve, Reuse | None]:
    if sample is not None:
        return sampled_miss_ratio_curve(trace, rate=sample), None
    distances = stack_distances(trace)
    reuse = Reuse(distances.histogram, reuse_entropy(distances), temporal_locality(distances))
    return miss_ratio_curve(trace, distances), reuse


def _counts(trace: Trace) -> Counts:
    reads, writes = trace.kind == Kind.READ, trace.kind == Kind.WRITE
    sizes = trace.size_bytes
    first = np.full(trace.buffer_count, len(trace.accessed))
    np.minimum.at(first, trace.accessed, np.arange(len(trace.accessed)))
    used = first < len(trace.accessed)
    created = np.zeros(trace.buffer_count, np.bool_)
    created[used] = trace.kind[trace.is_access][first[used]] == Kind.WRITE
    return Counts(
        accesses=trace.access_count,
        reads=int(reads.sum()),
        writes=int(writes.sum()),
        buffers=trace.buffer_count,
        steps=trace.step_count,
        read_bytes=int(sizes[trace.buffer[reads]].sum()),
        written_bytes=int(sizes[trace.buffer[writes]].sum()),
        footprint_bytes=trace.footprint_bytes,
        compulsory_bytes=int(sizes[used & ~created].sum()),
        created_bytes=int(sizes[created].sum()),
    )


def _peak(occupancy: Occupancy, top: int) -> Peak:
    trace, event = occupancy.trace, occupancy.peak_event
    step = int(trace.step[event]) if event >= 0 else 0
    op = trace.ops[step] if trace.ops else ""
    return Peak(occupancy.peak_bytes, step, op, occupancy.peak_by_role(), occupancy.top_live(top))


def _by_window(per_step: NDArray[np.int64], windows: int) -> NDArray[np.int64]:
    found = np.zeros(windows, np.int64)
    np.maximum.at(found, np.arange(len(per_step)) * windows // max(len(per_step), 1), per_step)
    return found


def _doubling(histogram: NDArray[np.int64]) -> list[dict[str, int]]:
    """Return the counts of distances 0, 1, 2–3, 4–7 …."""
    edges = [0, 1]
    while edges[-1] < len(histogram):
        edges.append(2 * edges[-1])
    pairs = pairwise(edges) if len(histogram) else ()
    return [{"from": low, "to": high - 1, "reuses": int(histogram[low:high].sum())} for low, high in pairs]
