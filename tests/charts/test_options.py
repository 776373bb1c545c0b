"""Options of the charts: pure JSON, the right words, and the same picture in light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.elements import echarts_chart

from accelera._plotting import MOST_LINES, dark_colours
from accelera.charts._internal import (
    curves_chart,
    curves_legend,
    heatmap_chart,
    occupancy_chart,
    occupancy_legend,
    policy_bars,
    timeline_chart,
)
from tests.charts.views import NAMES, scores, views

CHARTS = ("occupancy", "policies", "curves", "timeline", "heatmap")


def chart(kind: str, name: str, theme: str = "light") -> dict[str, Any]:
    found = views(name)
    if kind == "occupancy":
        return occupancy_chart(found["fit"]["occupancy"], theme)
    if kind == "policies":
        return policy_bars(found["fit"]["comparison"], theme)
    if kind == "curves":
        return curves_chart(found["curves"], found["budget"], theme)
    if kind == "timeline":
        return timeline_chart(found["timeline"], theme)
    return heatmap_chart(scores() if name != "empty" else [], theme)


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from strings(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one, key)


def hovers(value: Any) -> Iterator[str]:
    """Yield the templates of boxes at the pointer: the only texts that ECharts reads as HTML."""
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from hovers(one)
    if isinstance(value, dict) and isinstance(value.get("tooltip"), dict):
        yield value["tooltip"].get("formatter", "")


def texts(option: dict[str, Any]) -> str:
    return " | ".join(text for _, text in strings(option))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", CHARTS)
def test_options_are_json_and_hold_no_script(kind: str, name: str) -> None:
    option = chart(kind, name)
    text = json.dumps(option, allow_nan=False)
    assert json.loads(text) == option
    assert not any(key == "renderItem" for key, _ in strings(option))
    for series in option["series"]:
        assert len(series.get("data", [])) <= 601
        assert series["type"] in ("line", "bar", "heatmap")
    assert option["aria"]["label"]["description"]


def darkened(value: Any, colours: dict[str, str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: darkened(one, colours, name) for name, one in value.items()}
    if isinstance(value, list):
        return [darkened(one, colours, key) for one in value]
    if isinstance(value, str) and key.lower().endswith("color"):
        return colours.get(value[:7], value[:7]) + value[7:]
    return value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["occupancy", "policies", "curves", "timeline"])
def test_a_dark_chart_is_the_light_one_in_other_colours(kind: str, name: str) -> None:
    """The report holds light charts and the table of colours alone."""
    assert darkened(chart(kind, name), dark_colours()) == chart(kind, name, "dark")


def test_memory_names_budget_peak_and_what_is_too_much() -> None:
    view = views("training")["fit"]["occupancy"]
    said = texts(occupancy_chart(view))
    assert "budget " in said
    assert f": {view['peak']['op']}" in said or f"\n{view['peak']['op']}" in said
    assert " too much" in said
    assert {"forward", "backward", "update"} <= {one["name"] for one in view["phases"]}
    assert "operation, in order" in said


def test_roles_add_up_and_what_stays_lies_below() -> None:
    view = views("training")["fit"]["occupancy"]
    option = occupancy_chart(view)
    layers = [one for one in option["series"] if one["name"] not in ("above the budget", "in all")]
    assert [one["name"] for one in layers][-2:] == ["optimizer", "weights"]
    for at in range(len(view["steps"])):
        own = sum(layer["data"][at][2] for layer in layers)
        assert own == pytest.approx(layers[0]["data"][at][1], abs=0.01 * len(layers))
        assert layers[0]["data"][at][1] == option["series"][-1]["data"][at][1]


def test_what_is_above_the_budget_is_drawn_from_the_budget_up() -> None:
    option = chart("occupancy", "training")
    above = next(one for one in option["series"] if one["name"] == "above the budget")
    budget = option["series"][-1]["markLine"]["data"][0]["yAxis"]
    assert above["areaStyle"]["origin"] == budget
    total = option["series"][-1]["data"]
    for (step, top, over), (_, whole, _) in zip(above["data"], total, strict=True):
        assert top == pytest.approx(max(whole, budget), abs=1e-2), step
        assert over == pytest.approx(max(whole - budget, 0), abs=1e-2), step


def test_a_budget_far_above_is_said_and_not_drawn() -> None:
    view = views("training")["fit"]["occupancy"] | {"budget_bytes": 10**12}
    option = occupancy_chart(view)
    assert "markLine" not in option["series"][-1]
    assert "1 TB" in option["xAxis"]["name"]


def test_legend_says_sizes_at_the_peak() -> None:
    view = views("training")["fit"]["occupancy"]
    rows = {row["label"]: row for row in occupancy_legend(view)}
    assert rows["weights"]["text"].endswith(("kB", "MB"))
    assert rows["above the budget"]["colour"] not in {
        row["colour"] for label, row in rows.items() if label != "above the budget"
    }


def test_bars_say_their_values_the_least_and_who_must_know_the_schedule() -> None:
    comparison = views("training")["fit"]["comparison"]
    option = policy_bars(comparison)
    bars = option["series"][0]["data"]
    assert [one["label"]["fontWeight"] for one in bars] == ["bold", "normal", "normal", "normal"]
    assert "least possible " in texts(option)
    assert "needs the schedule" in texts(option)
    assert f"moved per {comparison['per']}" in option["xAxis"]["name"]
    longest = max(one["value"] for one in bars)
    assert option["xAxis"]["max"] >= 1.2 * longest, "the longest bar's value needs room"


def test_curves_show_five_lines_at_most_with_their_names() -> None:
    found = views("training")["curves"]
    many = found | {"moved": {f"p{index}": [9 - index] * 8 for index in range(9)} | found["moved"]}
    option = curves_chart(many, views("training")["budget"])
    lines = [one["name"] for one in option["series"] if one["name"] != "least possible"]
    assert len(lines) == MOST_LINES
    marked = texts(option["series"][-1]["markPoint"])
    assert all(name in marked for name in lines)
    assert "you: " in texts(option)
    assert ("no schedule moves less" in marked) != ("least possible" in marked)
    widths = [one["lineStyle"]["width"] for one in option["series"] if one["name"] in lines]
    assert widths[-1] == max(widths)
    assert widths.count(max(widths)) == 1
    assert len({row["colour"] for row in curves_legend(many)}) == MOST_LINES + 1
    chosen = curves_legend(many, chosen=["p3", "lru"])
    assert {row["label"] for row in chosen} == {"p3", "LRU", "least possible"}


def test_misses_are_percent() -> None:
    found = views("training")["curves"]
    option = curves_chart(found, measure="miss_ratio")
    assert "%" in option["yAxis"]["name"]
    assert option["yAxis"]["max"] <= 120
    assert "least possible" not in texts(option)


def test_lanes_have_a_span_each_with_its_words() -> None:
    found = views("training")["timeline"]
    option = timeline_chart(found)
    for lane in found["lanes"]:
        if lane["spans"]:
            drawn = next(one for one in option["series"] if one["name"] == lane["name"])
            assert len(drawn["markArea"]["data"]) == len(lane["spans"])
            begin, end = drawn["markArea"]["data"][0]
            assert begin["xAxis"] <= end["xAxis"]
            assert lane["name"] in begin["tooltip"]["formatter"]


def test_cells_hold_the_mean_of_their_scores() -> None:
    rows: list[dict[str, Any]] = [
        {"tensor_id": "a", "reuse_distance": None, "eviction_score": 0.25},
        {"tensor_id": "a", "reuse_distance": 3, "eviction_score": 0.5},
        {"tensor_id": "a", "reuse_distance": 6, "eviction_score": 1.0},
        {"tensor_id": "b", "reuse_distance": 0, "eviction_score": None},
    ]
    option = heatmap_chart(rows)
    values = [one["value"] for one in option["series"][0]["data"]]
    assert values == [[0, 0, 0.25, 0.0], [0, 3, 0.75, 1.0]]
    assert option["yAxis"]["data"] == ["first use", "0", "1–2", "3–6"]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert heatmap_chart(columns) == option


def test_only_some_of_many_tensors_are_shown_and_that_is_said() -> None:
    option = heatmap_chart(scores())
    assert len(option["xAxis"]["data"]) == 40
    assert "40 of 50 tensors" in option["xAxis"]["name"]


@pytest.mark.parametrize("kind", CHARTS)
def test_nothing_to_draw_is_said(kind: str) -> None:
    option = chart(kind, "empty")
    assert option["series"] == []
    assert len(option["title"]["text"]) > 20


@pytest.mark.parametrize("kind", CHARTS)
def test_names_reach_no_template_and_no_html(kind: str) -> None:
    option = chart(kind, "hostile")
    for key, text in strings(option):
        if key == "formatter":
            assert "{c}" not in text
            assert "{a|b}" not in text
    for text in hovers(option):
        assert set(re.findall(r"<[^>]*>", text)) <= {"<br/>"}
    assert not any(one in json.dumps(option) for one in ("\\u0000", "\\u202e"))


def test_another_theme_is_refused() -> None:
    with pytest.raises(ValueError, match="take 'light' or 'dark'"):
        chart("curves", "training", "blue")


@pytest.mark.parametrize("kind", CHARTS)
def test_streamlit_takes_every_option(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in NAMES:
        option = chart(kind, name)
        with caplog.at_level("WARNING"):
            echarts_chart._warn_on_unsupported_value_formatters(option)
        assert not echarts_chart._contains_pyecharts_jscode(option)
    assert caplog.messages == []


@pytest.mark.parametrize("kind", ["occupancy", "curves"])
def test_series_are_painted_in_their_order(kind: str) -> None:
    """A chart that is given another option paints what it had before first, but for the order asked for."""
    heights = [one["z"] for one in chart(kind, "training")["series"]]
    assert heights == sorted(set(heights))
    assert heights[0] > 1
    assert heights[-1] < 5  # between the bands, and the texts and lines of marks
