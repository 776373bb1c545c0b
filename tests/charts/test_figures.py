"""Charts as files, and their numbers."""

from __future__ import annotations

import csv
import io
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from pyarrow import parquet

from accelera.charts import figure_bytes
from accelera.charts._internal import TITLES, table_bytes, table_of
from accelera.errors import BackendMissingError
from tests.charts.views import scores, views


def view(kind: str, name: str) -> Any:
    found = views(name)
    return {
        "occupancy": found["fit"]["occupancy"],
        "policies": found["fit"]["comparison"],
        "curves": found["curves"],
        "timeline": found["timeline"],
        "heatmap": scores(),
    }[kind]


@pytest.mark.parametrize("kind", TITLES)
def test_svg_says_what_the_chart_says(kind: Any) -> None:
    svg = figure_bytes(view(kind, "training"), kind, "svg", budget_bytes=views("training")["budget"])
    root = ET.fromstring(svg)
    words = " ".join("".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text"))
    assert TITLES[kind] in words
    expected = {
        "occupancy": ["budget", "peak", "too much", "operation, in order", "weights"],
        "policies": ["least possible", "Belady", "moved per step"],
        "curves": ["you: ", "memory, ", "LRU"],
        "timeline": ["compute", "load", "budget", "time, "],
        "heatmap": ["evict first", "reuse distance", "first use"],
    }[kind]
    assert all(one in words for one in expected), words


@pytest.mark.parametrize("kind", TITLES)
def test_png_with_names_that_mean_harm(kind: Any) -> None:
    assert figure_bytes(view(kind, "hostile"), kind, "png", "dark").startswith(b"\x89PNG")


def test_the_same_view_is_the_same_file() -> None:
    one, other = (figure_bytes(view("policies", "tiny"), "policies", "svg") for _ in range(2))
    assert one == other


def test_nothing_to_draw_is_a_file_that_says_so() -> None:
    assert b"nothing to draw" in figure_bytes(view("occupancy", "empty"), "occupancy", "svg")


def test_what_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = view("policies", "tiny")
    with pytest.raises(ValueError, match="take one of occupancy"):
        figure_bytes(found, "pie")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="take 'png' or 'svg'"):
        figure_bytes(found, "policies", "pdf")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendMissingError, match=r"accelera-engine\[plot\]"):
        figure_bytes(found, "policies")


@pytest.mark.parametrize("kind", TITLES)
def test_tables_hold_the_numbers(kind: Any) -> None:
    columns = table_of(view(kind, "training"), kind)
    rows = list(csv.reader(io.StringIO(table_bytes(view(kind, "training"), kind).decode())))
    assert rows[0] == list(columns)
    assert len(rows) - 1 == len(next(iter(columns.values())))
    if kind == "occupancy":
        parts = [name for name in columns if name.endswith("_bytes") and name != "total_bytes"]
        assert [sum(columns[name][at] for name in parts) for at in range(3)] == columns["total_bytes"][:3]


@pytest.mark.parametrize("kind", ["policies", "timeline"])
def test_parquet_holds_the_same(kind: Any) -> None:
    columns = table_of(view(kind, "training"), kind)
    assert (
        parquet.read_table(io.BytesIO(table_bytes(view(kind, "training"), kind, "parquet"))).to_pydict()
        == columns
    )


def test_no_cell_of_a_csv_is_a_formula() -> None:
    found = {
        "lanes": [{"name": "load", "spans": [{"begin": 0.0, "end": 1.0, "label": "=cmd|' /C calc'!A0"}]}]
    }
    text = table_bytes(found, "timeline").decode()
    assert "'=cmd" in text


def test_unknown_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="take one of"):
        table_of({}, "pie")
    with pytest.raises(ValueError, match="take 'csv' or 'parquet'"):
        table_bytes(view("policies", "tiny"), "policies", "xlsx")  # type: ignore[arg-type]
