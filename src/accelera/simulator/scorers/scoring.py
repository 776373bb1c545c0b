"""The scorers by name. A score says how willingly a buffer is given up after an access: highest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accelera.errors import UnknownNameError
from accelera.extras import require
from accelera.policy import heuristic_scores, replay_next_uses
from accelera.simulator.scorers.learned import learned_scores
from accelera.simulator.scorers.llm import llm_scores
from accelera.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Scores = NDArray[np.float64]
_SCORERS: dict[str, Callable[..., Scores]] = {
    "heuristic": heuristic_scores,
    "replay": replay_next_uses,
    "learned": learned_scores,
    "llm": llm_scores,
}
SCORERS = tuple(_SCORERS)
"""Names that ``score`` and ``predict_eviction_scores`` know."""
IN_UNITS = frozenset({"heuristic", "llm"})
"""Scorers whose scores lie in 0..1 by themselves; the others predict times."""


def score(trace: Trace, scorer: str = "replay", **options: Any) -> Scores:
    """Return one score per access, shape (accesses,), for the policies ``scored`` and ``learned``.

    Parameters
    ----------
    scorer
        ``"heuristic"``: the seed's 0.4 * size + 0.5 * reuse distance + 0.1 * stride, in 0..1.
        ``"replay"``: the time of the next use if this iteration goes like the last.
        ``"learned"``: the time of the next use as trees predict it that were trained on other models.
        ``"llm"``: the order in which a language model would give up the tensors, in 0..1.
    options
        ``model=`` for ``learned``; ``path=``, ``timeout_s=``, ``four_bit=`` for ``llm``.

    Raises UnknownNameError for a scorer that there is not, BackendMissingError where its library is absent.
    """
    if scorer not in _SCORERS:
        raise UnknownNameError.among("scorer", scorer, SCORERS)
    return _SCORERS[scorer](trace, **options)


def predict_eviction_scores(
    trace: Trace | pd.DataFrame, scorer: str = "replay", **options: Any
) -> pd.DataFrame:
    """Return the trace's table with the column ``eviction_score``, from 0 (keep) to 1 (evict first).

    Events that are no accesses have none (NaN). ``heuristic`` and ``llm`` are as they are; the times that
    ``replay`` and ``learned`` predict are replaced by their rank, which keeps their order: a simulation with
    these scores evicts what one with the times does.

    Parameters
    ----------
    trace
        A trace, or its table.
    scorer, options
        See ``score``.

    >>> from accelera.simulator import generate_synthetic_trace
    >>> trace = generate_synthetic_trace(num_layers=1)
    >>> table = predict_eviction_scores(trace, scorer="heuristic")
    >>> bool(table.eviction_score.between(0, 1).sum() == trace.access_count)
    True
    """
    require("predict_eviction_scores", "pandas", otherwise="or call score, which returns an array")
    given = trace if isinstance(trace, Trace) else Trace.from_pandas(trace)
    found = score(given, scorer, **options)
    return given.to_pandas(scores=found if scorer in IN_UNITS else ranks(found))


def ranks(scores: Scores) -> Scores:
    """Return the rank of each score among the distinct ones, from 0 to 1; shape (n,)."""
    distinct, place = np.unique(scores, return_inverse=True)
    result: Scores = place / max(len(distinct) - 1, 1)
    return result
