"""Results of jobs on a page: pictures, sentences and short tables; the JSON is folded away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from accelera._plotting import format_ratio, format_size
from accelera.charts._internal import CURVES_HEIGHT, curves_chart, curves_legend, policy_label
from accelera.ui.failures import sentence_of
from accelera.ui.pictures import draw, escaped, legend, page_of, theme
from accelera.units import format_seconds

SHOWN = 6
"""Rows of a ranking."""
NAMES = {
    "needs_bytes": "needs",
    "budget_bytes": "budget",
    "short_bytes": "short (below 0: left)",
    "moved_bytes": "moved",
    "seconds": "time",
    "compute_seconds": "computing alone",
    "waiting_seconds": "waiting",
    "slowdown": "times as long",
    "best_policy": "best policy",
    "best": "best policy",
    "knee_bytes": "knee: more memory pays less beyond",
    "smallest_without_stalls_bytes": "smallest without waiting",
    "ample_bytes": "room for everything",
    "lower_bound_bytes": "least that must move",
    "capacity_bytes": "memory asked about",
    "plain_moved_bytes": "moved under LRU",
    "ratio": "LRU over the best",
    "least_bytes": "least possible",
    "floor_bytes": "smallest budget that runs",
    "hit_ratio": "hit ratio",
    "total_s": "time",
    "stall_s": "waiting",
    "per": "figures are per",
}
"""Figures in words."""


def show_result(kind: str, found: Mapping[str, Any], key: str) -> None:
    """Draw what a job found; ``key`` is once on a page."""
    _DRAWINGS.get(kind, _figures)(found)
    with st.expander("All of it, as JSON", key=f"json_of_{key}"):
        st.json(found, expanded=1)


def curves_of_sweep(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep as the JSON of the curves' view; bytes are of a whole replay, with the first load."""
    rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in found["policies"]}
    for row in sorted(found["rows"], key=lambda row: row["capacity_bytes"]):
        rows[row["policy"]].append(row)
    knee = found["knee_bytes"]
    return {
        "per": "replay",
        "capacities": found["capacities"],
        "moved": {name: [row["moved_bytes"] for row in each] for name, each in rows.items()},
        "miss_ratio": {name: [_missed(row) for row in each] for name, each in rows.items()},
        "least": found.get("lower_bounds"),
        "knee_bytes": knee if knee > found["capacities"][0] else None,
        "miss_knee_bytes": None,
    }


def _missed(row: Mapping[str, Any]) -> float:
    return float(row["misses"] / max(row["hits"] + row["misses"], 1))


def sentence_of_sweep(found: Mapping[str, Any]) -> str:
    """Return who moves least, how much at the knee, and what more memory brings; Markdown."""
    best, knee = found["best"], found["knee_bytes"]
    moved = {row["policy"]: row["moved_bytes"] for row in found["rows"] if row["capacity_bytes"] == knee}
    size, amount = format_size(knee), format_size(moved[best])
    words = f"**{policy_label(best)}** moves least by and large: **{amount}** in {size} of memory"
    if best != "lru" and moved.get("lru") and moved[best]:
        words += f", where LRU moves {format_ratio(moved['lru'] / moved[best])} as much"
    if knee == found["capacities"][0]:
        return f"{words}."
    return f"{words}. Beyond that size, the knee, more memory pays less than before."


def _sweep(found: Mapping[str, Any]) -> None:
    st.markdown(sentence_of_sweep(found))
    if len(found["capacities"]) > 1:
        curves = curves_of_sweep(found)
        legend(curves_legend(curves, theme()))
        draw(curves_chart(curves, None, theme()), None, CURVES_HEIGHT)
        return
    order = sorted(found["rows"], key=lambda row: row["moved_bytes"])
    _table(
        "policy",
        [{"policy": policy_label(row["policy"]), "moved": _size(row, "moved_bytes")} for row in order],
    )


def _advice(found: Mapping[str, Any]) -> None:
    st.markdown("\n".join(f"- {escaped(sentence_of(each))}" for each in found["words"]))
    with st.container(horizontal=True):
        for name, label in (
            ("capacity_bytes", "Memory asked about"),
            ("floor_bytes", "Smallest that runs"),
            ("knee_bytes", "Knee"),
            ("ample_bytes", "Room for everything"),
            ("lower_bound_bytes", "Least that must move"),
        ):
            if found.get(name) is not None:
                st.metric(label, format_size(found[name]), width="content")
    ranking = [
        {
            "policy": policy_label(row["policy"]),
            "moved": _size(row, "moved_bytes"),
            "time": format_seconds(row["total_s"]),
            "waiting": format_seconds(row["stall_s"]),
            "must know the schedule": "yes" if row["needs_future"] else "no",
        }
        for row in found["ranking"]
    ]
    _table("policy", ranking[:SHOWN])
    if found["resident"]:
        st.markdown("Worth keeping in memory throughout:")
        kept = [
            {
                "tensor": escaped(row["name"]),
                "size": _size(row, "size_bytes"),
                "moves less by": _size(row, "saved_bytes"),
            }
            for row in found["resident"][:SHOWN]
        ]
        _table("tensor", kept)


def _bounds(found: Mapping[str, Any]) -> None:
    st.markdown("No schedule moves less than this:")
    pairs = zip(found["capacities"], found["lower_bound_bytes"], strict=True)
    _table(
        "memory", [{"memory": format_size(at), "least that must move": format_size(one)} for at, one in pairs]
    )


def _capture(found: Mapping[str, Any]) -> None:
    st.markdown(
        f"**{escaped(str(found['name']))}**: {found['accesses']:,} accesses of {found['buffers']:,} "
        f"tensors in {found['steps']:,} steps; all tensors together {format_size(found['footprint_bytes'])}."
    )
    st.page_link(page_of("fit"), label="Open it", query_params={"trace": found["digest"]})


def _figures(found: Mapping[str, Any]) -> None:
    if found.get("headline"):
        st.markdown(escaped(str(found["headline"])))
    rows = [
        {"figure": NAMES.get(name, name.replace("_", " ")), "value": figure_text(name, value)}
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    _table("figure", rows)


def figure_text(name: str, value: Any) -> str:
    """Return a figure with its unit, by the end of its name."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if name.endswith("_bytes"):
        return ("−" if value < 0 else "") + format_size(abs(value))
    if name.endswith(("seconds", "_s")):
        return format_seconds(value)
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}"


def _size(row: Mapping[str, Any], name: str) -> str:
    return format_size(row[name])


def _table(index: str, rows: Sequence[Mapping[str, str]]) -> None:
    if rows:
        st.table(pd.DataFrame(rows).set_index(index))


_DRAWINGS = {"sweep": _sweep, "advise": _advice, "bounds": _bounds, "capture": _capture}
