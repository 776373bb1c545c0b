"""Largest batch or context that fits, by doubling and bisection over traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from accelera.errors import ArgumentError
from accelera.memory import Hierarchy
from accelera.simulator.presets import hierarchy_of
from accelera.simulator.replay import simulate
from accelera.simulator.report import Report
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Occupancy, Trace

Need = Literal["resident", "runs", "no_stalls"]
"""What is asked of the first tier: that everything alive stays in it; that each step alone fits, the rest
being moved; or that moving makes no step wait."""


@dataclass(frozen=True)
class Limit:
    """The largest size found, and what it takes."""

    largest: int
    """0 when not even the smallest fits."""
    need: Need
    capacity_bytes: int
    """Bytes of the first tier."""
    peak_bytes: int
    """Most bytes alive at the largest size."""
    floor_bytes: int
    """Bytes of its largest step."""
    traces: int
    """How many traces were made to find it."""


def largest_batch(
    make_trace: Callable[[int], Trace],
    hierarchy: Hierarchy | int | str,
    *,
    need: Need = "resident",
    policy: str = "planner",
    lookahead: int = 1,
    tolerance: float = 0.01,
    multiple: int = 1,
    most: int = 1 << 20,
) -> Limit:
    """Return the largest batch for which ``make_trace(batch)`` does what is needed.

    The size is doubled until it is too large and then bisected, so a larger batch must not need less.

    Parameters
    ----------
    make_trace
        From a size to its trace: a capture, or ``generate_synthetic_trace``.
    hierarchy
        The tiers, a preset's name, or the capacity of the first.
    need
        ``"resident"``: everything alive fits the first tier. ``"runs"``: the operands of every step fit, the
        rest is moved. ``"no_stalls"``: moreover, waiting takes at most ``tolerance`` of the time more than
        with room for everything, under ``policy`` and ``lookahead``.
    policy, lookahead
        What ``"no_stalls"`` is simulated with.
    tolerance
        Share of the time that waiting may add.
    multiple
        Sizes that are tried are multiples of this.
    most
        The largest size to try.

    Raises
    ------
    ValueError
        For a ``multiple`` or ``most`` below 1.
    UnknownNameError
        A name that there is not.
    """
    if multiple < 1 or most < multiple:
        raise ArgumentError(f"[largest_batch] most={most} and multiple={multiple} leave no size to try")
    machine = hierarchy_of(hierarchy)
    capacity = machine.tiers[0].capacity_bytes

    def suffices(trace: Trace) -> bool:
        if need == "resident":
            return Occupancy(trace).peak_bytes <= capacity
        runs = TimeSteps.of(trace).floor_bytes <= capacity
        return runs and (need == "runs" or _waits_little(trace, machine, policy, lookahead, tolerance))

    sizes = _TracedSizes(make_trace, suffices, multiple)
    largest = largest_that(sizes.fits, most // multiple)
    trace = sizes.largest
    peak = 0 if trace is None else Occupancy(trace).peak_bytes
    floor = 0 if trace is None else TimeSteps.of(trace).floor_bytes
    return Limit(largest * multiple, need, capacity, peak, floor, sizes.made)


def largest_context(
    make_trace: Callable[[int], Trace], hierarchy: Hierarchy | int | str, *, multiple: int = 128, **more: Any
) -> Limit:
    """Return the longest context in tokens, a multiple of 128, for which ``make_trace(tokens)`` fits.

    The other arguments are those of ``largest_batch``.

    Parameters
    ----------
    make_trace
        From a number of tokens to its trace.
    hierarchy
        The tiers, a preset's name, or the capacity of the first.
    multiple
        Lengths that are tried are multiples of this.
    more
        Further arguments of ``largest_batch``.
    """
    return largest_batch(make_trace, hierarchy, multiple=multiple, **more)


def added_wait(report: Report, free: Report) -> float:
    """Return the share of ``report``'s time that is waiting which ``free``, with room for all, has not."""
    return (report.stall_s - free.stall_s) / report.total_s if report.total_s else 0.0


def _waits_little(trace: Trace, machine: Hierarchy, policy: str, lookahead: int, tolerance: float) -> bool:
    here = simulate(trace, machine, policy, lookahead=lookahead)
    roomy = machine.with_capacity(max(machine.tiers[0].capacity_bytes, trace.footprint_bytes))
    return added_wait(here, simulate(trace, roomy, policy, lookahead=lookahead)) <= tolerance


def largest_that(fits: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """Return the largest whole number up to ``most`` that fits, 0 for none.

    ``guess`` is tried first, doubled while it fits, then bisected; a larger number must not fit where a
    smaller one does not.
    """
    low, high = 0, max(guess, 1)
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class _TracedSizes:
    """Traces made on demand, and the largest that sufficed."""

    def __init__(
        self, make_trace: Callable[[int], Trace], suffices: Callable[[Trace], bool], multiple: int
    ) -> None:
        self.largest: Trace | None = None
        self.made = 0
        self._make_trace = make_trace
        self._suffices = suffices
        self._multiple = multiple

    def fits(self, size: int) -> bool:
        """Return whether the trace of ``size`` multiples suffices."""
        self.made += 1
        trace = self._make_trace(size * self._multiple)
        good = self._suffices(trace)
        if good:
            self.largest = trace
        return good
