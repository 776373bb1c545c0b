"""The report: one file that loads nothing, whose names harm nobody, and whose numbers are the views'."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from accelera._plotting import format_size
from accelera.report import report_contents, report_page
from accelera.views import WhatIf
from tests.charts.views import HOSTILE, NAMES, trace, views

LARGEST = 1_500_000


def page(name: str, **more: Any) -> str:
    found = views(name)
    return report_page({**found, "title": f"trace {name}", "facts": ["a fact"], "largest": [], **more})


class Elements(HTMLParser):
    """Every element with its attributes, and the text of the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_from_anywhere(name: str) -> None:
    text = page(name)
    assert len(text.encode()) <= LARGEST
    elements = Elements(text)
    loading = {"src", "href", "srcset", "data", "action", "poster", "background"}
    assert [attrs for _, attrs in elements.found if loading & set(attrs)] == []
    assert "url(" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "default-src 'none'" in text
    assert len(elements.scripts) == 3


@pytest.mark.parametrize("name", ["training", "generation", "tiny"])
def test_data_are_the_charts_and_a_state_per_budget(name: str) -> None:
    data = json.loads(Elements(page(name)).scripts[0])
    assert set(data["charts"]) == {"memory", "policies", "curves", "misses", "timeline", "scores"}
    found = views(name)
    sizes = [state["bytes"] for state in data["states"]]
    assert sizes == sorted({*found["curves"]["capacities"], found["budget"]})
    given = [state for state in data["states"] if state.get("given")]
    assert [state["bytes"] for state in given] == [found["budget"]]
    last = data["states"][-1]
    assert last["text"].startswith("Everything fits")
    first, verdict = data["states"][0], found["fit"]["verdict"]
    short = format_size(verdict["needs_bytes"] - sizes[0])
    start = f"{short} short. " if sizes[0] >= verdict["floor_bytes"] else "Too small: one operation alone"
    assert first["text"].startswith(start)


def test_the_verdict_stands_first_and_the_numbers_in_tables() -> None:
    text = page("training")
    words = " ".join(Elements(text).words).replace("\N{NO-BREAK SPACE}", " ")
    fit = views("training")["fit"]
    assert words.index(fit["verdict"]["headline"][:20]) < words.index("What fills the memory")
    assert fit["verdict"]["sentence"] in words
    for row in fit["comparison"]["policies"]:
        assert format_size(row["moved_bytes"]) in words
    for size in fit["occupancy"]["peak"]["roles"].values():
        assert format_size(size) in words
    assert text.count("<table>") == 6
    assert text.count("<caption>") == 6


def test_names_are_text() -> None:
    largest = [{"name": name, "role": "weight", "size_bytes": 1} for name in HOSTILE]
    text = page("hostile", largest=largest, title=HOSTILE[0], facts=[HOSTILE[0]])
    elements = Elements(text)
    assert not [tag for tag, _ in elements.found if tag == "img"]
    assert len(elements.scripts) == 3
    assert text.count("</script>") == 3
    words = "".join(elements.words)
    assert words.count(HOSTILE[0]) >= 3
    assert HOSTILE[1] in words


def test_contents_of_a_trace() -> None:
    found = report_contents(trace("training"), views("training")["budget"], WhatIf("h200"), ["lru", "belady"])
    assert list(found["curves"]["moved"]) == ["lru", "belady"]
    assert found["fit"]["comparison"]["least_bytes"] is not None
    assert found["timeline"]["policy"] == found["fit"]["verdict"]["best_policy"]
    assert any("h200" in fact for fact in found["facts"])
    assert found["largest"][0]["size_bytes"] == max(one["size_bytes"] for one in found["largest"])
    json.dumps(found, allow_nan=False)
    without = report_contents(trace("training"), views("training")["budget"], bound=False)
    assert without["curves"]["least"] is None
    assert any("least possible was not worked out" in fact for fact in without["facts"])


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0, 50.0])
def test_a_page_of_any_budget(share: float) -> None:
    """None, below the largest step, just enough, far more than enough."""
    budget = int(share * views("training")["fit"]["verdict"]["needs_bytes"])
    contents = report_contents(trace("training"), budget, bound=False)
    data = json.loads(Elements(report_page(contents)).scripts[0])
    state = next(one for one in data["states"] if one.get("given"))
    start = "Too small" if share < 0.1 else "Everything fits"
    assert state["text"].startswith(start)


def test_a_page_of_an_empty_trace() -> None:
    contents = report_contents(trace("empty"), 100)
    text = report_page(contents)
    assert "nothing to draw" in text
    assert 'id="budget"' not in text


def test_the_library_is_the_released_one_with_its_licences() -> None:
    folder = files("accelera.report") / "vendor" / "echarts"
    digest = hashlib.sha256(folder.joinpath("echarts.common.min.js").read_bytes()).hexdigest()
    assert digest in folder.joinpath("README.md").read_text(encoding="utf-8")
    assert "Apache License" in folder.joinpath("LICENSE").read_text(encoding="utf-8")
    assert all(folder.joinpath(name).is_file() for name in ("NOTICE", "LICENSE-d3"))
