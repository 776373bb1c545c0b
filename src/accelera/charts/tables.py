"""The numbers behind a chart as a table: columns for people who cannot see it, CSV and Parquet files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any, Literal

from accelera._extras import needed_for
from accelera.charts.heatmap import columns_of_scores, distance_class_of
from accelera.errors import ArgumentError
from accelera.views._internal import ViewJson

Columns = dict[str, list[Any]]


def table_of(view: Any, kind: str) -> Columns:
    """Return the numbers of a view as columns of one length, their units in their names.

    ``kind`` is one of ``figure_bytes``; raises ValueError for another.
    """
    if kind not in _TABLES:
        raise ArgumentError(f"[table] {kind!r} is no chart; take one of {', '.join(_TABLES)}")
    return _TABLES[kind](view)


def table_bytes(view: Any, kind: str, format: Literal["csv", "parquet"] = "csv") -> bytes:
    """Return ``table_of`` as a CSV (UTF-8) or Parquet file.

    Raises ValueError for another kind or format, BackendMissingError where Parquet's library is absent.
    """
    columns = table_of(view, kind)
    if format == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*map(_formula_safe, columns.values()), strict=True))
        return text.getvalue().encode()
    if format != "parquet":
        raise ArgumentError(f"[table] {format!r} is no format; take 'csv' or 'parquet'")
    with needed_for("table", "or take csv"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _formula_safe(column: list[Any]) -> list[Any]:
    """Return cells of which none is a formula in a spreadsheet: tensors may have any name."""
    return ["'" + one if isinstance(one, str) and one[:1] in "=+-@\t\r" and one else one for one in column]


def _occupancy(view: ViewJson) -> Columns:
    columns: Columns = {"step": list(view["steps"])}
    columns |= {f"{role['role']}_bytes": list(role["bytes"]) for role in view["roles"]}
    return columns | {"total_bytes": list(view["total"])}


def _policies(view: ViewJson) -> Columns:
    names = ("policy", "moved_bytes", "seconds", "hit_ratio", "evictions", "needs_schedule")
    return {name: [one.get(name) for one in view["policies"]] for name in names}


def _curves(view: ViewJson) -> Columns:
    columns: Columns = {"capacity_bytes": list(view["capacities"])}
    if view.get("least"):
        columns["least_bytes"] = list(view["least"])
    columns |= {f"{name}_moved_bytes": list(moved) for name, moved in view["moved"].items()}
    misses = view.get("miss_ratio") or {}
    return columns | {f"{name}_miss_ratio": list(ratio) for name, ratio in misses.items()}


def _timeline(view: ViewJson) -> Columns:
    rows = [(lane["name"], span) for lane in view["lanes"] for span in lane["spans"]]
    return {
        "lane": [lane for lane, _ in rows],
        "begin_s": [span["begin"] for _, span in rows],
        "end_s": [span["end"] for _, span in rows],
        "label": [str(span["label"]) for _, span in rows],
        "bytes": [span.get("bytes") for _, span in rows],
    }


def _heatmap(scored: Any) -> Columns:
    if "cells" in scored:
        cells = scored["cells"]
        return {
            "tensor_id": [scored["tensors"][cell["tensor"]] for cell in cells],
            "reuse_distances": [distance_class_of(cell["row"]) for cell in cells],
            "eviction_score": [cell["score"] for cell in cells],
            "accesses": [cell["accesses"] for cell in cells],
        }
    tensors, distances, scores = columns_of_scores(scored)
    return {"tensor_id": tensors, "reuse_distance": distances, "eviction_score": scores}


_TABLES: Mapping[str, Callable[[Any], Columns]] = {
    "occupancy": _occupancy,
    "policies": _policies,
    "curves": _curves,
    "timeline": _timeline,
    "heatmap": _heatmap,
}
