"""Timeline of a replay: computing, loads, stores, and how full the memory is meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.memory import Hierarchy
from accelera.simulator import Report, simulate
from accelera.simulator._internal import Timeline
from accelera.trace import Trace
from accelera.units import format_seconds
from accelera.views.facts import JsonView, MeasuredTrace, WhatIf, facts_of
from accelera.views.occupancy import MOST_POINTS, phases_of, thinned
from accelera.views.wording import policy_label, share_of

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class LaneSpan:
    """A stretch of time in which a lane is busy."""

    begin: float
    """Seconds since the replay's start."""
    end: float
    label: str
    """The operation or the buffer; of several, how many."""
    bytes: int | None
    """Of transfers."""


@dataclass(frozen=True)
class TimelineLane:
    """A lane of the timeline: compute, or one direction of a link."""

    name: str
    """``compute``; ``load`` and ``store`` over the link to the first tier; for each slower link the tier
    behind it with ``read`` or ``write``, such as ``disk read``, where something moves there."""
    spans: list[LaneSpan]
    """In order; those that begin within the same 600th of the shown time are one."""


@dataclass(frozen=True)
class OccupancyOverTime:
    """Bytes in the first tier from each time on."""

    seconds: list[float]
    bytes: list[int]


@dataclass(frozen=True)
class TimedPhase:
    """A phase with its times."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class TimelineView(JsonView):
    """A replay over time, in seconds since its start."""

    seconds: float
    """Time at which the last step and the last transfer have ended."""
    busy: dict[str, float]
    """Seconds in all that each lane is busy, by its name."""
    waiting_seconds: float
    """Seconds that computing waited for operands, the first load included."""
    lanes: list[TimelineLane]
    occupancy: OccupancyOverTime
    phases: list[TimedPhase]
    budget_bytes: int
    begin: float
    """First second that is shown."""
    end: float
    policy: str
    lookahead: int
    left_out: int
    """Number of spans that are not shown by themselves, because they are merged with others."""
    sentence: str


def timeline_view(
    trace: Trace | MeasuredTrace,
    budget_bytes: int,
    what_if: WhatIf | None = None,
    policy: str = "belady",
    *,
    window: tuple[float, float] | None = None,
) -> TimelineView:
    """Replay ``trace`` in ``budget_bytes`` and return what happens when.

    ``what_if`` loads one step ahead by default.
    ``window`` is the time to show, from and until a second; all of it by default.

    Raises BudgetExceededError where no schedule runs in the budget, UnknownNameError for a policy or machine.
    """
    facts, what_if = facts_of(trace), what_if or WhatIf(lookahead=1)
    facts.check_runs("timeline", budget_bytes)
    machine = what_if.at(max(budget_bytes, 1))
    report = simulate(facts.trace, machine, policy, lookahead=what_if.lookahead, timeline=True)
    assert report.timeline is not None
    timeline = report.timeline
    last = float(max(timeline.step_end_s.max(initial=0.0), timeline.move_end_s.max(initial=0.0)))
    begin, end = (0.0, last) if window is None else (max(window[0], 0.0), min(window[1], last))
    end = max(begin, end)
    links = _links(machine, timeline)
    lanes, left_out = _lanes(facts.trace, timeline, links, begin, end)
    return TimelineView(
        seconds=last,
        busy=_busy(timeline, links),
        waiting_seconds=report.stall_s,
        lanes=lanes,
        occupancy=_occupancy(timeline, begin, end),
        phases=_timed_phases(facts, timeline),
        budget_bytes=budget_bytes,
        begin=begin,
        end=end,
        policy=report.policy,
        lookahead=what_if.lookahead,
        left_out=left_out,
        sentence=_sentence(report),
    )


def _links(machine: Hierarchy, timeline: Timeline) -> dict[str, NDArray[np.intp]]:
    """Return the rows of the transfers of each lane but ``compute``."""
    links = {"load": timeline.moves(0, away=False), "store": timeline.moves(0, away=True)}
    for link, tier in enumerate(machine.tiers[2:], 1):
        lower_tiers = {f"{tier.name} read": timeline.moves(link, away=False)}
        lower_tiers[f"{tier.name} write"] = timeline.moves(link, away=True)
        links |= {name: rows for name, rows in lower_tiers.items() if len(rows)}
    return links


def _lanes(
    trace: Trace, timeline: Timeline, links: dict[str, NDArray[np.intp]], begin: float, end: float
) -> tuple[list[TimelineLane], int]:
    """Return the lanes, and how many spans were merged into others."""
    ops = [trace.ops[step].replace("_", " ") for step in timeline.step.tolist()]
    lanes = [
        TimelineLane("compute", _spans(timeline.step_begin_s, timeline.step_end_s, ops, None, begin, end))
    ]
    inside = _inside(timeline.step_begin_s, timeline.step_end_s, begin, end).sum()
    for name, rows in links.items():
        begins, ends = timeline.move_begin_s[rows], timeline.move_end_s[rows]
        names = [trace.names[buffer] for buffer in timeline.move_buffer[rows].tolist()]
        spans = _spans(begins, ends, names, timeline.move_bytes[rows], begin, end)
        lanes.append(TimelineLane(name, spans))
        inside += _inside(begins, ends, begin, end).sum()
    return lanes, int(inside) - sum(len(lane.spans) for lane in lanes)


def _inside(begins: Seconds, ends: Seconds, begin: float, end: float) -> NDArray[np.bool_]:
    return (ends >= begin) & (begins <= end) & (ends > begins)


def _spans(
    begins: Seconds,
    ends: Seconds,
    labels: list[str],
    sizes: NDArray[np.int64] | None,
    begin: float,
    end: float,
) -> list[LaneSpan]:
    """Return what lies in the window, at most one span for each 600th of it."""
    rows = np.flatnonzero(_inside(begins, ends, begin, end))
    rows = rows[np.argsort(begins[rows], kind="stable")]
    if not len(rows):
        return []
    slot = (np.clip(begins[rows] - begin, 0, None) * ((MOST_POINTS - 1) / max(end - begin, 1e-12))).astype(
        int
    )
    first = np.flatnonzero(np.diff(slot, prepend=-1))
    last = np.append(first[1:], len(rows))
    until = np.maximum.reduceat(ends[rows], first)
    summed = None if sizes is None else np.add.reduceat(sizes[rows], first)
    what = "operations" if sizes is None else "tensors"
    return [
        LaneSpan(
            begin=float(begins[rows[one]]),
            end=float(until[place]),
            label=labels[rows[one]] if after - one == 1 else f"{after - one} {what}",
            bytes=None if summed is None else int(summed[place]),
        )
        for place, (one, after) in enumerate(zip(first.tolist(), last.tolist(), strict=True))
    ]


def _busy(timeline: Timeline, links: dict[str, NDArray[np.intp]]) -> dict[str, float]:
    busy = {"compute": float((timeline.step_end_s - timeline.step_begin_s).sum())}
    for name, rows in links.items():
        busy[name] = float((timeline.move_end_s[rows] - timeline.move_begin_s[rows]).sum())
    return busy


def _occupancy(timeline: Timeline, begin: float, end: float) -> OccupancyOverTime:
    since, held = timeline.resident_since_s, timeline.resident_bytes
    first = max(int(np.searchsorted(since, begin, side="right")) - 1, 0)
    last = int(np.searchsorted(since, end, side="right"))
    since, held = np.maximum(since[first:last], begin), held[first:last]
    shown = thinned(held)
    return OccupancyOverTime(since[shown].tolist(), held[shown].tolist())


def _timed_phases(facts: MeasuredTrace, timeline: Timeline) -> list[TimedPhase]:
    """Return the phases with the time from the first to the last of their steps."""
    timed = []
    for phase in phases_of(facts.trace, facts.units):
        rows = np.flatnonzero((timeline.step >= phase.begin) & (timeline.step < phase.end))
        if len(rows):
            begin, end = float(timeline.step_begin_s[rows].min()), float(timeline.step_end_s[rows].max())
            timed.append(TimedPhase(phase.name, begin, end))
    return timed


def _sentence(report: Report) -> str:
    total = report.total_s
    if not total:
        return "Neither the trace nor the machine tells how long anything takes."
    return (
        f"Under {policy_label(report.policy)} it takes {format_seconds(total)}: computing "
        f"{format_seconds(report.compute_s)}, and waiting for memory {format_seconds(report.stall_s)} "
        f"({share_of(report.stall_s / total)})."
    )
