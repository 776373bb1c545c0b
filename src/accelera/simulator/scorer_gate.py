"""Gate of the scorers: one is used only where a simulation on the trace shows that it does no harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accelera._extras import require
from accelera._plotting import format_size
from accelera.errors import ArgumentError
from accelera.memory import Hierarchy
from accelera.policy import POLICIES
from accelera.policy._internal import needs
from accelera.simulator.replay import simulate
from accelera.simulator.report import Report
from accelera.simulator.scorers import score, unit_scores
from accelera.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


PLAIN = ("lru", *(name for name in POLICIES if name != "lru" and set(needs(name)) <= {"capacity_bytes"}))
"""Heuristics that look at nothing but what happened, against which a scorer must stand: all there are."""
TOLERANCE = 0.01
"""How much worse than the best of them a scorer may be, as a share of the bytes moved."""


@dataclass(frozen=True, eq=False)
class Gated:
    """Verdict of the gate: the policy to use, and why."""

    scorer: str
    """The one that was asked for."""
    accepted: bool
    """Whether it is used."""
    policy: str
    """The policy to run with: ``scored``, or the best plain heuristic."""
    score: NDArray[np.float64] | None = field(repr=False)
    """What ``policy`` follows, shape (accesses,); None for a plain heuristic."""
    scorer_bytes: int
    """Bytes moved with the scorer in the shadow simulation."""
    plain_bytes: dict[str, int]
    """Bytes moved with each plain heuristic, there too."""
    shadow_steps: int
    """Steps that were simulated."""

    @property
    def best_plain(self) -> str:
        """The heuristic that moved the fewest bytes; of equals the first."""
        return min(self.plain_bytes, key=self.plain_bytes.__getitem__)

    @property
    def reason(self) -> str:
        """The decision in a sentence."""
        best = self.plain_bytes[self.best_plain]
        if set(self.plain_bytes.values()) == {self.scorer_bytes}:
            return f"all policies move {format_size(best)} here: {self.scorer} makes no difference"
        compared = (
            f"{self.scorer} moves {format_size(self.scorer_bytes)}, {self.best_plain} {format_size(best)}"
        )
        said = "is used" if self.accepted else f"is over {TOLERANCE:.0%} worse, so {self.best_plain} is used"
        return f"{compared} in {self.shadow_steps} steps: {self.scorer} {said}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores as JSON-able values."""
        names = ("scorer", "accepted", "policy", "scorer_bytes", "plain_bytes", "shadow_steps", "reason")
        return {name: getattr(self, name) for name in names}


def gated(
    trace: Trace,
    scorer: str | NDArray[np.float64],
    hierarchy: Hierarchy | int | float | str,
    *,
    plain: Sequence[str] = PLAIN,
    prefix: float = 1.0,
    lookahead: int = 0,
    name: str | None = None,
    **options: Any,
) -> Gated:
    """Compare a scorer with plain heuristics by bytes moved, and choose.

    With ``prefix=1`` what is chosen moves at most 1 % more than the best plain heuristic on this trace in
    this hierarchy. A shorter prefix is cheaper and promises that for the prefix only.

    Parameters
    ----------
    trace
        The accesses, in order.
    scorer
        A name of ``SCORERS``, or scores of your own, shape (accesses,).
    hierarchy, lookahead
        See ``simulate``.
    plain
        Policies to stand against.
    prefix
        Share of the trace's steps to simulate, above 0 and at most 1.
    name
        What to call scores of your own in the verdict; ``"given"`` when absent.
    options
        For the scorer; see ``score``.

    Raises
    ------
    UnknownNameError
        A name that there is not.
    ValueError
        For a prefix out of range or without heuristics.
    """
    if not 0 < prefix <= 1:
        raise ArgumentError(f"[gate] prefix={prefix} must be above 0 and at most 1")
    if not plain:
        raise ArgumentError("[gate] plain names no policy; give at least one to compare with")
    known_as = name or (scorer if isinstance(scorer, str) else "given")
    scores = score(trace, scorer, **options) if isinstance(scorer, str) else np.asarray(scorer, np.float64)
    shadow = trace if prefix == 1 else head(trace, max(1, round(prefix * trace.step_count)))

    def moved(policy: str, followed: NDArray[np.float64] | None = None) -> int:
        report: Report = simulate(shadow, hierarchy, policy, lookahead=lookahead, score=followed)
        return report.moved_bytes

    by_plain = {policy: moved(policy) for policy in plain}
    by_scorer = moved("scored", scores[: shadow.access_count] if prefix < 1 else scores)
    best = min(by_plain, key=by_plain.__getitem__)
    accepted = by_scorer <= (1 + TOLERANCE) * by_plain[best]
    policy, followed = ("scored", scores) if accepted else (best, None)
    return Gated(known_as, accepted, policy, followed, by_scorer, by_plain, shadow.step_count)


def head(trace: Trace, steps: int) -> Trace:
    """Return the first ``steps`` steps of ``trace``."""
    count = int(np.searchsorted(trace.step, steps, side="left"))
    used = int(trace.buffer[:count].max(initial=-1)) + 1
    return Trace.from_arrays(
        trace.buffer[:count],
        trace.size_bytes[trace.buffer[:count]],
        kinds=trace.kind[:count],
        steps=trace.step[:count],
        strides=trace.stride[:count],
        names=trace.names[:used],
        roles=trace.roles[:used],
        dtypes=trace.dtypes[:used],
        ops=trace.ops[:steps],
        flops=trace.flops[:steps],
        seconds=trace.seconds[:steps],
        model_type=trace.model_type,
    )


UNGATED = (
    "{scorer} was not compared with anything: its evictions may move more bytes than lru's. "
    "Give hierarchy=, for example '8GiB', and the gate says whether to follow it there"
)
"""What the table says of scores that no gate has seen."""


def predict_eviction_scores(
    trace: Trace | pd.DataFrame,
    scorer: str = "replay",
    *,
    hierarchy: Hierarchy | int | float | str | None = None,
    lookahead: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Return the trace's table with the column ``eviction_score``, from 0 (keep) to 1 (evict first).

    **The scores are the scorer's own and not gated**: whether evicting by them moves fewer bytes than LRU
    depends on the memory. With ``hierarchy`` the gate simulates that, and ``table.attrs["gate"]`` has its
    verdict; without, it says that there is none.

    Events that are no accesses have no score (NaN). ``heuristic`` and ``llm`` are as they are; the times that
    ``replay`` and ``learned`` predict are replaced by their rank, which keeps their order: a simulation with
    these scores evicts what one with the times does.

    Parameters
    ----------
    trace
        A trace, or its table.
    scorer, options
        See ``score``.
    hierarchy, lookahead
        The memory to ask the gate for, as in ``simulate``; see ``gated``.

    Returns
    -------
    pandas.DataFrame
        Its ``attrs["gate"]`` is a dict with ``checked``, ``reason`` (a sentence) and, where checked, the
        fields of ``Gated``: ``accepted``, ``policy`` (the one to run with), bytes moved by each.

    Raises
    ------
    UnknownNameError
        For a scorer or hierarchy that there is not.
    BackendMissingError
        Where a library is absent.

    Examples
    --------
    >>> from accelera.simulator import generate_synthetic_trace
    >>> trace = generate_synthetic_trace(num_layers=1)
    >>> table = predict_eviction_scores(trace, scorer="heuristic")
    >>> bool(table.eviction_score.between(0, 1).sum() == trace.access_count)
    True
    >>> table.attrs["gate"]["checked"]
    False
    """
    require("predict_eviction_scores", "pandas", otherwise="or call score, which returns an array")
    given = trace if isinstance(trace, Trace) else Trace.from_pandas(trace)
    scores = unit_scores(given, scorer, **options)
    table = given.to_pandas(scores=scores)
    if hierarchy is None:
        table.attrs["gate"] = {"checked": False, "reason": UNGATED.format(scorer=scorer)}
    else:
        choice = gated(given, scores, hierarchy, lookahead=lookahead, name=scorer)
        table.attrs["gate"] = {"checked": True, **choice.to_dict()}
    return table
