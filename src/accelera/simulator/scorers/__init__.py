"""Scorers by name; the buffer with the highest score is evicted first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.errors import UnknownNameError
from accelera.policy._internal import heuristic_scores, replay_next_uses
from accelera.simulator.scorers.learned import learned_scores, train_scorer
from accelera.simulator.scorers.llm import llm_scores
from accelera.trace import Trace

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
    trace
        The accesses, in order.
    scorer
        ``"heuristic"``: the seed's 0.4 * size + 0.5 * reuse distance + 0.1 * stride, in 0..1.
        ``"replay"``: the time of the next use if this iteration goes like the last.
        ``"learned"``: the time of the next use as trees predict it that were trained on other models.
        ``"llm"``: the order in which a language model would give up the tensors, in 0..1.
    options
        ``model=`` for ``learned``; ``path=``, ``timeout=``, ``four_bit=`` for ``llm``.

    Raises
    ------
    UnknownNameError
        For a scorer that there is not.
    BackendMissingError
        Where its library is absent.
    """
    if scorer not in _SCORERS:
        raise UnknownNameError.among("scorer", scorer, SCORERS)
    return _SCORERS[scorer](trace, **options)


def unit_scores(trace: Trace, scorer: str = "replay", **options: Any) -> Scores:
    """Return ``score`` in 0..1, shape (accesses,): predicted times are replaced by their ranks."""
    found = score(trace, scorer, **options)
    return found if scorer in IN_UNITS else ranks(found)


def ranks(scores: Scores) -> Scores:
    """Return the rank of each score among the distinct ones, from 0 to 1; shape (n,)."""
    distinct, place = np.unique(scores, return_inverse=True)
    result: Scores = place / max(len(distinct) - 1, 1)
    return result


__all__ = ["SCORERS", "score", "train_scorer", "unit_scores"]
