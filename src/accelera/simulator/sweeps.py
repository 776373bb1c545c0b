"""Sweeps: policies x capacities, what each would move, and where more memory stops paying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera._extras import needed_for
from accelera._progress import with_progress
from accelera._result_html import page_html
from accelera.errors import ArgumentError, UnknownNameError
from accelera.memory import Hierarchy
from accelera.policy import POLICIES
from accelera.simulator.lower_bounds import bound_curve
from accelera.simulator.max_batch import added_wait
from accelera.simulator.presets import capacity_of, hierarchy_of
from accelera.simulator.replay import one_by_one, simulate
from accelera.simulator.report import Report
from accelera.simulator.sweep_page import Curves, sweep_page
from accelera.simulator.sweep_plot import plot_sweep, sweep_table
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Occupancy, Trace
from accelera.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd


Cell = tuple[str, int]
"""A policy, and the bytes of the first tier."""

PIECES = 32
"""Into how many pieces an executor is given a sweep, at most: each takes the trace along."""

_NOTHING = Trace.from_arrays([], 0)
_FRAME_HEIGHT, _ROW_HEIGHT, _FRAME_ROWS = 710, 30, 6
"""Pixels of a sweep's chart in a notebook, and of each of the rows of its table that are seen at first."""


@final
@dataclass(frozen=True)
class SweepReplays:
    """What all replays of a sweep have in common; pickled if its parts can be."""

    trace: Trace
    machine: Hierarchy
    scores: Mapping[str, ArrayLike]
    lookahead: int
    recompute: bool
    seed: int

    def replay(self, cell: Cell) -> Report:
        """Return what ``simulate`` finds for one policy and capacity."""
        name, size = cell
        return simulate(
            self.trace,
            self.machine.with_capacity(size),
            name,
            lookahead=self.lookahead,
            recompute=self.recompute,
            score=self.scores.get(name),
            seed=self.seed,
        )

    def replay_all(self, cells: Sequence[Cell]) -> list[Report]:
        """Return the reports of several cells without the trace, which the caller has."""
        return [replace(self.replay(cell), trace=_NOTHING) for cell in cells]

    def on_threads(self, cells: Sequence[Cell], threads: int | None, *, shown: bool) -> list[Report]:
        """Return the reports of ``cells`` in their order, replayed by threads of this process."""
        self.replay(cells[0])
        with ThreadPoolExecutor(threads) as pool:
            return list(with_progress(pool.map(self.replay, cells), len(cells), "sweep", enabled=shown))

    def on_executor(self, cells: Sequence[Cell], executor: Executor, *, shown: bool) -> list[Report]:
        """Return the reports of ``cells`` in their order, replayed wherever ``executor`` runs its tasks.

        Raises what a replay or the executor raises; what has not begun by then is cancelled.
        """
        record = one_by_one(self.trace) if self.machine.sequential else self.trace
        count = min(PIECES, len(cells))
        futures = [executor.submit(self.replay_all, cells[first::count]) for first in range(count)]
        found: dict[Cell, Report] = {}
        try:
            for first, future in enumerate(with_progress(futures, count, "sweep", enabled=shown)):
                reports = [replace(report, trace=record) for report in future.result()]
                found.update(zip(cells[first::count], reports, strict=True))
        finally:
            for future in futures:
                future.cancel()
        return [found[cell] for cell in cells]


CAPACITIES = 50
"""How many capacities are tried when none are given."""

_COLUMNS = (
    "moved_bytes",
    "fetched_bytes",
    "saved_bytes",
    "hits",
    "misses",
    "evictions",
    "stall_s",
    "total_s",
    "oversized_steps",
)


def depths_below_chord(sizes: Sequence[int], curve: ArrayLike) -> NDArray[np.float64]:
    """Return how far a curve, made non-rising, lies below the line between its ends; shape (sizes,).

    Both axes are scaled to 0..1; a curve that does not fall lies nowhere below. The knee is where the depth
    is largest.
    """
    falling = np.minimum.accumulate(np.asarray(curve, dtype=np.float64))
    at = np.array(sizes, dtype=np.float64)
    if falling[0] == falling[-1]:
        return np.zeros(len(at))
    down = (falling - falling[-1]) / (falling[0] - falling[-1])
    along = (at - at[0]) / (at[-1] - at[0])
    depths: NDArray[np.float64] = np.round(1 - along - down, 12)
    return depths


@dataclass(frozen=True, eq=False)
class Sweep:
    """Reports by policy and capacity."""

    trace: Trace = field(repr=False)
    policies: tuple[str, ...]
    capacities: tuple[int, ...]
    """Bytes of the first tier, rising."""
    reports: Mapping[str, tuple[Report, ...]] = field(repr=False)
    """Per policy, one report per capacity."""

    def __repr__(self) -> str:
        low, high = format_bytes(self.capacities[0]), format_bytes(self.capacities[-1])
        return (
            f"<Sweep of {len(self.policies)} policies at {len(self.capacities)} capacities from {low} to "
            f"{high}: {self.best()} moves the fewest bytes>"
        )

    def _repr_html_(self) -> str:
        """Return the chart of ``plot``; the lower bound is drawn if it has been computed before."""
        height = _FRAME_HEIGHT + _ROW_HEIGHT * min(len(self.policies), _FRAME_ROWS)
        return page_html(sweep_page(self._curves("lower_bounds" in vars(self))), height, repr(self))

    @cached_property
    def lower_bounds(self) -> tuple[int, ...]:
        """The least bytes any schedule moves, per capacity; computed when first asked for, in seconds.

        Solved at up to 8 capacities and proven by tangents, up to a few percent less sharp, in between.
        """
        return tuple(map(int, bound_curve(self.trace, self.capacities)))

    def moved_bytes(self, policy: str) -> NDArray[np.int64]:
        """Return the bytes that ``policy`` moves, shape (capacities,); raises UnknownNameError."""
        return np.array([report.moved_bytes for report in self._of(policy)], dtype=np.int64)

    def regret(self, policy: str) -> NDArray[np.float64]:
        """Return moved bytes over the lower bound, shape (capacities,); 1 where both are 0."""
        moved, least = self.moved_bytes(policy), np.array(self.lower_bounds)
        with np.errstate(divide="ignore", invalid="ignore"):
            found: NDArray[np.float64] = np.where(moved == least, 1.0, moved / least)
        return found

    def best(self, capacity: int | str | None = None) -> str:
        """Return the policy that moves the fewest bytes at the nearest capacity, or by and large.

        By and large: the smallest geometric mean, over all capacities, of bytes moved over those of the
        best policy there. Of equals, the one that waits least.
        """
        moved = np.array([self.moved_bytes(policy) for policy in self.policies], dtype=np.float64)
        waits = np.array([[report.stall_s for report in self.reports[policy]] for policy in self.policies])
        if capacity is not None:
            at = self._nearest(capacity_of(capacity, self.trace))
            moved, waits = moved[:, at : at + 1], waits[:, at : at + 1]
        excess = np.log((moved + 1) / (moved.min(axis=0) + 1)).mean(axis=1)
        ranking = np.lexsort((waits.sum(axis=1), np.round(excess, 12)))
        return self.policies[int(ranking[0])]

    def knee(self, policy: str | None = None) -> int:
        """Return the capacity in bytes beyond which more memory pays less than it did before.

        The curve of bytes moved over capacity, made non-rising, runs from its first point to its last; the
        knee is where it lies furthest below the straight line between them, both axes scaled to 0..1. A
        curve that nowhere lies below has its knee at the first capacity. ``policy``: ``best()`` when absent.
        """
        depths = depths_below_chord(self.capacities, self.moved_bytes(policy or self.best()))
        return self.capacities[int(np.argmax(depths))]

    def smallest_without_stalls(self, policy: str | None = None, *, tolerance: float = 0.01) -> int:
        """Return the smallest capacity in bytes from which on no step waits for lack of memory.

        At it and every larger one, at most ``tolerance`` of the time is waiting that does not also occur at
        the largest capacity. ``policy``: ``best()`` when absent.
        """
        reports = self._of(policy or self.best())
        waits = [added_wait(report, reports[-1]) > tolerance for report in reports]
        first = len(waits) - waits[::-1].index(True) if True in waits else 0
        return self.capacities[min(first, len(waits) - 1)]

    def to_pandas(self, *, bound: bool = True) -> pd.DataFrame:
        """Return one row per policy and capacity; ``bound`` adds the lower bound and the regret."""
        with needed_for("to_pandas"):
            import pandas as pd

        frame: pd.DataFrame = pd.DataFrame(self._rows(bound))
        return frame

    def to_dict(self, *, bound: bool = True) -> dict[str, Any]:
        """Return rows and findings as JSON-able values; sizes in bytes."""
        return {
            "policies": list(self.policies),
            "capacities": list(self.capacities),
            "best": self.best(),
            "knee_bytes": self.knee(),
            "smallest_without_stalls_bytes": self.smallest_without_stalls(),
            **({"lower_bounds": list(self.lower_bounds)} if bound else {}),
            "rows": list(self._rows(bound)),
        }

    def table(self, *, bound: bool = True, columns: int = 6) -> str:
        """Return bytes moved by policy at up to ``columns`` of the capacities, the best policy first.

        ``bound`` adds a row with the lower bound, and shows multiples of it instead of bytes.
        """
        return sweep_table(self._curves(bound), columns)

    def plot(self, path: str | Path, *, bound: bool = True) -> Path:
        """Draw bytes moved over capacity, one line per policy, into a ``.png`` or ``.html`` file.

        The page stands alone and needs no network. Raises BackendMissingError when a picture is asked for
        and matplotlib is absent, ValueError for another ending.
        """
        return plot_sweep(self._curves(bound), Path(path))

    def _curves(self, bound: bool) -> Curves:
        return Curves(
            self.capacities,
            {policy: self.moved_bytes(policy) for policy in self.policies},
            np.array(self.lower_bounds) if bound else None,
            self.best(),
            self.knee(),
            self.smallest_without_stalls(),
        )

    def _of(self, policy: str) -> tuple[Report, ...]:
        if policy not in self.reports:
            raise UnknownNameError.among("policy", policy, self.policies)
        return self.reports[policy]

    def _nearest(self, capacity: int) -> int:
        return int(np.argmin(np.abs(np.array(self.capacities) - capacity)))

    def _rows(self, bound: bool) -> Iterator[dict[str, Any]]:
        for policy in self.policies:
            regret = self.regret(policy) if bound else None
            for index, report in enumerate(self.reports[policy]):
                row = {"policy": policy, "capacity_bytes": self.capacities[index]}
                row |= {name: getattr(report, name) for name in _COLUMNS}
                if regret is not None:
                    shown = float(regret[index]) if np.isfinite(regret[index]) else None
                    row |= {"lower_bound_bytes": self.lower_bounds[index], "regret": shown}
                yield row


def sweep(
    trace: Trace,
    policies: Sequence[str] | str | None = None,
    capacities: Sequence[int | float | str] | int | str | None = None,
    hierarchy: Hierarchy | str | None = None,
    *,
    lookahead: int = 0,
    recompute: bool = False,
    scores: Mapping[str, ArrayLike] | None = None,
    seed: int = 0,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> Sweep:
    """Replay ``trace`` under every policy at every capacity, in parallel.

    Parameters
    ----------
    trace
        The accesses, in order.
    policies
        Names, or one; all of ``accelera.policy.POLICIES`` by default, without those that need a score they
        are not given.
    capacities
        Of the first tier: sizes in bytes, as text, or as shares of the peak (``"50%"``, ``0.5``); or how
        many, spread evenly from the hard floor (the operands of the largest step) to the peak (everything
        alive); 50 by default.
    hierarchy
        The tiers, or a preset's name; the capacity of the first is replaced. Two tiers by default.
    lookahead, recompute, seed
        As in ``simulate``.
    scores
        Per policy that follows a score, one number per access.
    threads
        How many replays run at once; by default a few more than there are processors.
    executor
        Who runs the replays instead of threads of this process: processes, or the machines of a cluster.
        It is given up to 32 pieces, each with the trace.
    progress
        Whether to show a bar, if stderr is a terminal.

    Raises
    ------
    UnknownNameError
        No policy or hierarchy has this name.
    ValueError
        An empty list of policies or capacities, a size that cannot be read, or both ``threads`` and
        ``executor``.
    """
    if executor is not None and threads is not None:
        raise ArgumentError(f"[sweep] threads={threads} and an executor: it has workers of its own; give one")
    scores = dict(scores or {})
    names = policy_names("sweep", policies, scores)
    sizes = _sizes(trace, capacities)
    machine = Hierarchy.of(sizes[0]) if hierarchy is None else hierarchy_of(hierarchy)

    common = SweepReplays(trace, machine, scores, lookahead, recompute, seed)
    cells = [(name, size) for name in names for size in sizes]
    if executor is None:
        found = common.on_threads(cells, threads, shown=progress)
    else:
        found = common.on_executor(cells, executor, shown=progress)
    per_policy = [tuple(found[begin : begin + len(sizes)]) for begin in range(0, len(found), len(sizes))]
    return Sweep(found[0].trace, names, sizes, dict(zip(names, per_policy, strict=True)))


def policy_names(
    op: str, policies: Sequence[str] | str | None, scores: Mapping[str, ArrayLike]
) -> tuple[str, ...]:
    """Return the names of policies as written by a caller of ``op``, each once; of all when None.

    Raises ValueError for an empty list, UnknownNameError for a name that is none.
    """
    if policies is None:
        return tuple(name for name in POLICIES if name != "learned" or name in scores)
    policies = [policies] if isinstance(policies, str) else policies
    names = tuple(dict.fromkeys(name.lower() for name in policies))
    if not names:
        raise ArgumentError(f"[{op}] no policies are given; leave them out to try all")
    for name in names:
        if name not in POLICIES:
            raise UnknownNameError.among("policy", name, POLICIES)
    return names


def _sizes(trace: Trace, capacities: Sequence[int | float | str] | int | str | None) -> tuple[int, ...]:
    capacities = [capacities] if isinstance(capacities, str) else capacities
    if capacities is None or isinstance(capacities, int):
        count = CAPACITIES if capacities is None else capacities
        floor, peak = TimeSteps.of(trace).floor_bytes, Occupancy(trace).peak_bytes
        sizes = {int(size) for size in np.linspace(floor, max(peak, floor), max(count, 0))}
    else:
        sizes = {capacity_of(size, trace) for size in capacities}
    if not sizes:
        raise ArgumentError(
            f"[sweep] capacities={capacities!r} names none; give sizes such as '8GiB', or how many"
        )
    return tuple(sorted(sizes))
