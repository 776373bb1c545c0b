"""Report of a replay: bytes moved, time lost, and where; with the timeline of steps and transfers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera._native import ReplayHistory
from accelera._result_html import MemoryBar, result_html
from accelera._text_table import text_table
from accelera.memory import Hierarchy
from accelera.trace import Trace
from accelera.units import format_bytes, format_seconds


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of a replay in seconds from its start, as columns in three groups.

    The columns of a group have one length: ``step*`` one row per step that computed, ``move_*`` one per
    transfer over a link, ``resident_*`` one per change of the bytes in the first tier. The arrays cannot be
    written to.
    """

    step: NDArray[np.int32]
    """Steps of ``Report.trace`` as they computed. A step that had to be retired in two parts has two rows."""
    step_begin_s: NDArray[np.float64]
    step_end_s: NDArray[np.float64]
    move_link: NDArray[np.int32]
    """Index of the link in ``Report.links``; rows are in the order in which transfers were asked for."""
    move_away: NDArray[np.bool_]
    """Whether the transfer went to the slower tier (a store); else it went to the faster one (a load)."""
    move_buffer: NDArray[np.int32]
    """Index in ``Report.trace.names``."""
    move_step: NDArray[np.int32]
    """The step whose admission asked for the transfer, or the last one admitted before it."""
    move_bytes: NDArray[np.int64]
    move_begin_s: NDArray[np.float64]
    move_end_s: NDArray[np.float64]
    resident_since_s: NDArray[np.float64]
    """Times that never decrease; the first is 0, with nothing in the tier."""
    resident_bytes: NDArray[np.int64]
    """Bytes in the first tier from that time on.

    A buffer counts from the begin of its transfer, or of the room for what is created, until a transfer that
    takes its place begins, or until it is freed. Changes keep the order in which the replay decided them: one
    decided later than another is never shown before it.
    """

    def __post_init__(self) -> None:
        for column in fields(self):
            getattr(self, column.name).flags.writeable = False

    def moves(self, link: int, *, away: bool) -> NDArray[np.intp]:
        """Return the rows of the transfers over ``link`` in one direction."""
        return np.flatnonzero((self.move_link == link) & (self.move_away == away))


def timeline_of(history: ReplayHistory) -> Timeline:
    """Return what a compiled replay wrote into ``history``."""
    columns = {column.name: getattr(history, column.name)() for column in fields(Timeline)}
    columns["move_away"] = columns["move_away"].view(np.bool_)
    return Timeline(**columns)


FIGURES = (
    "policy",
    "lookahead",
    "hits",
    "misses",
    "hit_ratio",
    "evictions",
    "fetched_bytes",
    "saved_bytes",
    "moved_bytes",
    "created_bytes",
    "peak_bytes",
    "compute_s",
    "stall_s",
    "total_s",
    "tail_s",
    "oversized_steps",
    "streamed_bytes",
    "largest_step_bytes",
    "recomputed_steps",
    "recomputed_s",
    "home_exceeded",
)
"""What ``Report.to_dict`` tells of a whole run."""


@dataclass(frozen=True)
class TierReport:
    """Figures of one tier; sizes in bytes."""

    name: str
    capacity_bytes: int
    hits: int
    misses: int
    evictions: int
    """Departures that the policy chose."""
    evicted_bytes: int
    fetched_bytes: int
    """Brought in from the next tier by misses that read."""
    created_bytes: int
    """Overwritten here by misses that write."""
    saved_bytes: int
    """Written to the next tier."""
    peak_bytes: int
    """Most bytes here at any time."""


@dataclass(frozen=True)
class LinkReport:
    """Traffic of the link between a tier and the next slower one."""

    name: str
    towards_bytes: int
    """To the faster tier."""
    towards_moves: int
    towards_s: float
    """Seconds it was busy in this direction."""
    away_bytes: int
    """To the slower tier."""
    away_moves: int
    away_s: float


@dataclass(frozen=True, eq=False)
class Report:
    """Result of ``simulate``; counters are those of the first tier, sizes in bytes, times in seconds."""

    policy: str
    hierarchy: Hierarchy
    lookahead: int
    tiers: tuple[TierReport, ...]
    """Fastest first; the last is the home, whose peak is what had a place there."""
    links: tuple[LinkReport, ...]
    compute_s: float
    """Arithmetic, what was done twice included."""
    stall_s: float
    """Waiting for operands."""
    tail_s: float
    """How long writes go on after the last step."""
    oversized_steps: int
    """Steps whose operands exceed the first tier together: some of them were moved, never resident."""
    streamed_bytes: int
    """Bytes of such operands."""
    largest_step_bytes: int
    """Bytes of the operands of the step that has the most."""
    recomputed_steps: int
    """How often a buffer was made again instead of moved."""
    recomputed_s: float
    trace: Trace = field(repr=False)
    timeline: Timeline | None = field(default=None, repr=False)
    """When everything happened; None unless ``simulate`` was asked to ``record``."""

    @property
    def hits(self) -> int:
        """Accesses that found their buffer."""
        return self.tiers[0].hits

    @property
    def misses(self) -> int:
        """Accesses that did not."""
        return self.tiers[0].misses

    @property
    def evictions(self) -> int:
        """Departures that the policy chose."""
        return self.tiers[0].evictions

    @property
    def fetched_bytes(self) -> int:
        """Bytes brought into the first tier."""
        return self.links[0].towards_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes written from the first tier to the next."""
        return self.links[0].away_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes fetched and saved."""
        return self.fetched_bytes + self.saved_bytes

    @property
    def created_bytes(self) -> int:
        """Bytes overwritten in the first tier."""
        return self.tiers[0].created_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes in the first tier at any time."""
        return self.tiers[0].peak_bytes

    @property
    def total_s(self) -> float:
        """When the last step is done."""
        return self.compute_s + self.stall_s

    @property
    def hit_ratio(self) -> float:
        """Hits over accesses; 1 for an empty trace. Misleading for tensors: compare ``moved_bytes``."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 1.0

    @property
    def home_exceeded(self) -> bool:
        """Whether the last tier would have to hold more than its capacity."""
        return self.tiers[-1].peak_bytes > self.tiers[-1].capacity_bytes

    @cached_property
    def lower_bound_bytes(self) -> int:
        """The least bytes that any schedule could move at this capacity; computed when first asked for."""
        from accelera.simulator.lower_bounds import lower_bound

        return lower_bound(self.trace, self.hierarchy.tiers[0].capacity_bytes)

    @property
    def regret(self) -> float:
        """Moved bytes over the lower bound; 1 where nothing need be moved and nothing is."""
        if self.lower_bound_bytes:
            return self.moved_bytes / self.lower_bound_bytes
        return float("inf") if self.moved_bytes else 1.0

    def as_seed_metrics(self) -> dict[str, int | float]:
        """Return the metrics by the names of seed 003.

        ``total_latency (ms)`` is ``total_s``; ``bandwidth_wait_time (ms)`` is what fetching into the first
        tier takes at the link's bandwidth, latencies left out.
        """
        bandwidth = self.hierarchy.tiers[1].bandwidth_bytes_per_s
        return {
            "cache_hits (count)": self.hits,
            "dram_accesses (count)": self.misses,
            "total_latency (ms)": self.total_s * 1e3,
            "evictions (count)": self.evictions,
            "bandwidth_wait_time (ms)": self.fetched_bytes / bandwidth * 1e3,
            "cache_hit_rate (%)": 100 * self.hit_ratio,
        }

    def to_dict(self, *, bound: bool = False) -> dict[str, Any]:
        """Return all figures as JSON-able values; ``bound`` adds the lower bound and the regret.

        The regret is None where nothing need be moved and something is: JSON has no infinity.
        """
        figures: dict[str, Any] = {name: getattr(self, name) for name in FIGURES}
        figures["tiers"] = [asdict(tier) for tier in self.tiers]
        figures["links"] = [asdict(link) for link in self.links]
        if bound:
            regret = self.regret if math.isfinite(self.regret) else None
            figures |= {"lower_bound_bytes": self.lower_bound_bytes, "regret": regret}
        return figures

    def __repr__(self) -> str:
        first = self.tiers[0]
        capacity, moved = format_bytes(first.capacity_bytes), format_bytes(self.moved_bytes)
        total, waiting = format_seconds(self.total_s), format_seconds(self.stall_s)
        return (
            f"<Report {self.policy} in {capacity}: {moved} moved, {first.hits} hits, {first.misses} misses, "
            f"{total} of which {waiting} waiting>"
        )

    def _repr_html_(self) -> str:
        bars = [
            MemoryBar(f"peak of {tier.name}", {tier.name: tier.peak_bytes}, tier.capacity_bytes)
            for tier in self.tiers[:-1]
        ]
        return result_html(repr(self), self.table(), bars)

    def table(self) -> str:
        """Return the figures as text, one tier per row, totals below."""
        header = ("tier", "capacity", "peak", "hits", "misses", "evictions", "fetched", "saved")
        rows = [header, *map(_row, self.tiers[:-1])]
        moved = f"moved {format_bytes(self.moved_bytes)} under {self.policy}"
        computing, waiting = format_seconds(self.compute_s), format_seconds(self.stall_s)
        times = f"{format_seconds(self.total_s)}: computing {computing}, waiting {waiting}"
        return "\n".join([text_table(rows), "", moved, times, *self._notes()])

    def _notes(self) -> list[str]:
        notes = []
        if self.oversized_steps:
            notes.append(
                f"{self.oversized_steps} steps exceed the first tier; the largest needs "
                f"{format_bytes(self.largest_step_bytes)}"
            )
        if self.recomputed_steps:
            notes.append(f"{self.recomputed_steps} buffers made again in {format_seconds(self.recomputed_s)}")
        if self.home_exceeded:
            home = self.tiers[-1]
            notes.append(f"{home.name} would have to hold {format_bytes(home.peak_bytes)}")
        return notes


def _row(tier: TierReport) -> tuple[str, ...]:
    sizes = tier.capacity_bytes, tier.peak_bytes
    moved = tier.fetched_bytes, tier.saved_bytes
    counts = tier.hits, tier.misses, tier.evictions
    return (tier.name, *map(format_bytes, sizes), *map(str, counts), *map(format_bytes, moved))
