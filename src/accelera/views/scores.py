"""Eviction scores by tensor and reuse distance: the numbers behind the heatmap of seed 003."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.simulator._internal import unit_scores
from accelera.trace import Trace
from accelera.trace._internal import stack_distances
from accelera.views.facts import JsonView

MOST_TENSORS = 40
"""More would be columns of a few pixels: those with the highest scores, then the most accessed."""
HIGHEST = 20
"""Tensors that are shown for their scores."""


@dataclass(frozen=True)
class ScoreCell:
    """Accesses to one tensor after similar distances."""

    tensor: int
    """Its place in ``ScoresView.tensors``."""
    row: int
    """0 for a first use; else ``n`` for distances from ``2**(n-1) - 1`` to ``2**n - 2``."""
    score: float
    """Mean of the accesses: 0 is kept, 1 goes first."""
    accesses: int


@dataclass(frozen=True)
class ScoresView(JsonView):
    """Mean eviction scores of the tensors that go first, and of the most accessed."""

    tensors: list[str]
    """In the order of their first access."""
    tensors_in_all: int
    cells: list[ScoreCell]
    """By tensor, then by row."""


def scores_view(trace: Trace, scorer: str = "heuristic") -> ScoresView:
    """Return the scores that ``scorer`` gives the accesses of ``trace``.

    Raises UnknownNameError for a scorer that there is not, BackendMissingError where its library is absent.
    """
    buffers = trace.buffer[trace.is_access]
    distances = stack_distances(trace).buffers
    return _view(trace.names, buffers, distances, unit_scores(trace, scorer))


def scores_of(
    tensors: Sequence[str], distances: Sequence[int | None], scores: Sequence[float | None]
) -> ScoresView:
    """Return the view of scored accesses, one value per access; a first use has no distance."""
    names = list(dict.fromkeys(tensors))
    places = {name: index for index, name in enumerate(names)}
    return _view(
        names,
        np.array([places[name] for name in tensors], dtype=np.int64),
        np.array([-1 if one is None else one for one in distances], dtype=np.int64),
        np.array([np.nan if one is None else one for one in scores], dtype=np.float64),
    )


def _view(
    names: Sequence[str],
    buffers: NDArray[np.integer],
    distances: NDArray[np.integer],
    scores: NDArray[np.float64],
) -> ScoresView:
    """Return mean scores by tensor and class of distance; ``names`` by buffer, the rest by access."""
    counts = np.bincount(buffers, minlength=len(names))
    first = np.full(len(names), len(buffers))
    np.minimum.at(first, buffers, np.arange(len(buffers)))
    highest = np.full(len(names), -np.inf)
    np.maximum.at(highest, buffers, np.nan_to_num(scores, nan=-np.inf))
    most = np.lexsort((first, -highest))[:HIGHEST]
    rest = np.lexsort((first, -counts))
    most = np.concatenate([most, rest[~np.isin(rest, most)]])[:MOST_TENSORS]
    shown = [int(one) for one in most[np.argsort(first[most])] if counts[one]]
    places = np.full(len(names), -1)
    places[shown] = np.arange(len(shown))

    columns, rows = places[buffers], np.frexp(distances + 1)[1]
    known = (columns >= 0) & np.isfinite(scores)
    height = int(rows.max(initial=0)) + 1
    cells = columns[known] * height + rows[known]
    total = np.bincount(cells, scores[known])
    count = np.bincount(cells)
    found = [
        ScoreCell(int(cell) // height, int(cell) % height, float(total[cell] / count[cell]), int(count[cell]))
        for cell in np.flatnonzero(count)
    ]
    return ScoresView([names[one] for one in shown], int((counts > 0).sum()), found)
