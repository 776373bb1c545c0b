"""Eviction scores by tensor and reuse distance, as seed 003 shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelera._plotting import Theme, format_count, theme_of
from accelera.charts.parts import Option, base, cut, hover, letters, message, tooltip, value_axis, verbatim
from accelera.views._internal import scores_of

HEATMAP_HEIGHT = 420
CIVIDIS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""Colours from dark to light that people with any colour vision order alike."""
FIRST_USE = "first use"

Accesses = Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]


def heatmap_chart(scored: Accesses, theme: str = "light") -> Option:
    """Return eviction scores as an option of ECharts: across the tensors, upwards the reuse distance.

    A cell is the mean score of the accesses in it, coloured by its rank among the cells: scores lie close
    together, and who leaves first is a question of order. Distances are in classes that double; a first use
    has none.

    Parameters
    ----------
    scored
        The JSON of a ``ScoresView``; or accesses as rows or columns, with ``tensor_id reuse_distance
        eviction_score``, as the service replies them.
    theme
        ``"light"`` or ``"dark"``.
    """
    look, view = theme_of(theme), scores_json(scored)
    if not view["tensors"]:
        return message(look, "This trace has no accesses: there are no scores.")
    shown, cells = view["tensors"], view["cells"]
    highest = max((cell["row"] for cell in cells), default=0)
    classes = [distance_class_of(row) for row in range(max(highest, 1) + 1)]
    names = [verbatim(cut(one, 18)) for one in shown]
    # Names stand at 60 degrees below the axis.
    depth = int(5.6 * max(map(len, names))) + 4
    total = view["tensors_in_all"]
    title = "tensor"
    if total > len(shown):
        title = f"{len(shown)} of {total} tensors: first to go, and most accessed"
    return base(look, f"Eviction scores of {len(shown)} tensors by reuse distance.") | {
        "grid": {
            "left": 86,
            "right": 14,
            "top": 56,
            "bottom": int(46 + 5.6 * max(len(cut(one, 18)) for one in shown)),
        },
        "tooltip": tooltip(look, trigger="item"),
        "xAxis": _tensor_axis(look, title, names, depth),
        "yAxis": _distance_axis(look, classes),
        "visualMap": _colours(look),
        "series": [
            {
                "type": "heatmap",
                "data": _marks(cells, shown, classes),
                "itemStyle": {"borderColor": look.background, "borderWidth": 1},
                "emphasis": {"disabled": True},
            }
        ],
    }


def scores_json(scored: Accesses) -> Mapping[str, Any]:
    """Return the JSON of a ``ScoresView``, of itself or of scored accesses."""
    if isinstance(scored, Mapping) and "cells" in scored:
        return scored
    return scores_of(*columns_of_scores(scored)).to_dict()


def columns_of_scores(accesses: Accesses) -> tuple[list[str], list[int | None], list[float | None]]:
    """Return tensors, reuse distances and scores of rows or columns; one value per access."""
    names = ("tensor_id", "reuse_distance", "eviction_score")
    if isinstance(accesses, Mapping):
        tensors, distances, scores = (list(accesses.get(name) or []) for name in names)
    else:
        tensors, distances, scores = ([row.get(name) for row in accesses] for name in names)
    return [str(one) for one in tensors], distances, scores


def distance_class_of(row: int) -> str:
    """Return the name of a cell's row, such as 3–6: ``first use``, or the other tensors in between."""
    if row == 0:
        return FIRST_USE
    first = 2 ** (row - 1) - 1
    last = 2 * first
    return f"{format_count(first)}–{format_count(last)}" if last > first else str(first)


def heatmap_colour(rank: float) -> str:
    """Return the colour of a rank from 0, keep, to 1, evict first."""
    place = min(max(rank, 0.0), 1.0) * (len(CIVIDIS) - 1)
    left = min(int(place), len(CIVIDIS) - 2)
    ends = [[int(CIVIDIS[one][at : at + 2], 16) for at in (1, 3, 5)] for one in (left, left + 1)]
    mixed = (round(low + (place - left) * (high - low)) for low, high in zip(*ends, strict=True))
    return "#" + "".join(f"{one:02x}" for one in mixed)


def _tensor_axis(theme: Theme, title: str, names: Sequence[str], depth: int) -> Option:
    axis = value_axis(theme, title, type="category", nameGap=depth + 20, data=list(names))
    axis["axisLabel"] |= {"rotate": 60, "interval": "auto", "hideOverlap": True, **letters(11)}
    return axis | {"splitLine": {"show": False}}


def _distance_axis(theme: Theme, classes: Sequence[str]) -> Option:
    axis = value_axis(theme, "reuse distance (other tensors between)", type="category", data=list(classes))
    title = {"align": "left", "padding": [0, 0, 2, -74], "color": theme.muted, **letters(12)}
    return axis | {"nameLocation": "end", "nameGap": 8, "nameTextStyle": title, "splitLine": {"show": False}}


def _colours(theme: Theme) -> Option:
    return {
        "type": "continuous",
        "min": 0,
        "max": 1,
        "dimension": 3,
        "orient": "horizontal",
        "right": 10,
        "top": 0,
        "itemHeight": 90,
        "itemWidth": 12,
        "precision": 2,
        "text": ["evict first", "keep"],
        "textStyle": {"color": theme.muted},
        "inRange": {"color": list(CIVIDIS)},
    }


def _marks(cells: Sequence[Mapping[str, Any]], shown: Sequence[str], classes: Sequence[str]) -> list[Option]:
    """Return the cells: column, row, score, and the rank of the score from 0 to 1."""
    distinct = sorted({round(cell["score"], 3) for cell in cells})
    ranks = {score: place / max(len(distinct) - 1, 1) for place, score in enumerate(distinct)}
    return [_mark(cell, ranks, shown, classes) for cell in cells]


def _mark(
    cell: Mapping[str, Any], ranks: Mapping[float, float], shown: Sequence[str], classes: Sequence[str]
) -> Option:
    column, row, score, count = cell["tensor"], cell["row"], round(cell["score"], 3), cell["accesses"]
    distance = classes[row] if not row else f"distance {classes[row]}"
    accesses = "1 access" if count == 1 else f"{format_count(count)} accesses"
    text = f"{cut(shown[column])}\n{distance}: score {score:.2f}, {accesses}"
    return {
        "value": [column, row, score, round(ranks[score], 3)],
        "tooltip": {"formatter": hover(text)},
    }
