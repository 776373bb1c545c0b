"""Results in notebooks: a repr of one line, HTML without scripts, a progress bar without widgets."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

import accelera
import accelera.tensora as ts
from accelera._result_html import MemoryBar, result_html

TRACE = accelera.generate_synthetic_trace("MLP", num_layers=4, batch_size=8, mode="training")
VALUES = np.ones((40, 30), np.float32)


def engine() -> accelera.MatrixEngine:
    return accelera.MatrixEngine("cpu", budget="64MiB", enable_progress=False)


def report_of_a_run() -> Any:
    matrix_engine = engine()
    matrix_engine.matmul(VALUES, VALUES.T, out=np.empty((40, 40), np.float32))
    return matrix_engine.last_report


RESULTS: dict[str, Callable[[], Any]] = {
    "plan": lambda: engine().plan(VALUES, VALUES.T),
    "plan_in_stages": lambda: engine().plan_evaluate(accelera.lazy(VALUES) @ VALUES.T + 1.0),
    "run_report": report_of_a_run,
    "report": lambda: accelera.simulate(TRACE, "60%", "arc"),
    "advice": lambda: accelera.advise(TRACE, "60%"),
    "sweep": lambda: accelera.sweep(TRACE, ["lru", "arc"], 3, progress=False),
    "estimate": lambda: accelera.estimate(torch.nn.Linear(64, 32), torch.ones(2, 64), budget="1MiB"),
    "offload_plan": lambda: accelera.plan_offload(torch.nn.Linear(64, 32), torch.ones(2, 64), "64MiB"),
    "execution_result": lambda: accelera.StrategyManager().execute([1, 2], lambda task: task),
    "trace": lambda: TRACE,
    "matrix": lambda: accelera.Matrix(VALUES),
    "store": lambda: accelera.open_store(VALUES),
}


class Elements(HTMLParser):
    """Names of the elements of a fragment, each of which must be closed."""

    EMPTY = ("line", "rect", "input", "meta", "link", "br")

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.feed(fragment)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", RESULTS)
def test_repr_is_one_line(name: str) -> None:
    text = repr(RESULTS[name]())
    assert "\n" not in text
    assert len(text) < 250
    assert " object at 0x" not in text


@pytest.mark.parametrize("name", RESULTS)
def test_html_is_well_formed_and_has_no_script(name: str) -> None:
    elements = Elements(RESULTS[name]()._repr_html_())
    assert elements.open == []
    assert elements.names[0] in ("div", "iframe")
    assert "script" not in elements.names


def test_tensora_objects_have_a_repr_of_one_line() -> None:
    assert repr(ts.budget("32MiB")) == "<TrainingBudget of 32.0 MiB on cpu, no step yet>"
    assert re.fullmatch(r"MemoryStats\(live_bytes=\d+, peak_bytes=\d+, .*\)", repr(ts.memory_stats()))


def test_bar_is_to_scale() -> None:
    html = result_html("<t>", "a < b", [MemoryBar("peak", {"blocks": 100, "reserve": 50}, 200)])
    widths = [float(width) for width in re.findall(r'<rect [^>]* width="([\d.]+)%"', html)]
    limit = float(re.findall(r'<line x1="([\d.]+)%"', html)[0])
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.02)
    assert limit == pytest.approx(sum(widths) * 200 / 150, abs=0.02)
    assert "&lt;t&gt;" in html
    assert "a &lt; b" in html


def test_bar_beyond_its_limit_and_empty_bar_fit() -> None:
    for bar in (MemoryBar("peak", {"blocks": 300}, 200), MemoryBar("peak", {}, None)):
        html = result_html("t", "", [bar])
        assert all(float(width) <= 100 for width in re.findall(r'<rect [^>]* width="([\d.]+)%"', html))


def test_legend_lists_the_largest_parts() -> None:
    html = result_html("t", "", [MemoryBar("peak", {f"part {size}": size for size in range(10)}, 200)])
    listed = re.findall(r"</span>(part \d) \d B</span>", html)
    assert listed == [f"part {size}" for size in range(4, 10)]
    assert ">3 more</span>" in html


CELL = """
import numpy as np
import accelera
from accelera.engine import report
report.PATIENCE_S = 0.0
np.save("p.npy", np.ones((600, 600), np.float32))
engine = accelera.MatrixEngine("cpu", auto_detect_memory=False, chunk_size=20, chunking_strategy="row")
engine.matmul("p.npy", "p.npy", out="q.npy", budget="64MiB")
engine.last_report
"""


def test_notebook_shows_the_report_and_no_warning(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    result = next(each for each in outputs if each.output_type == "execute_result")
    assert "predicted pool peak" in result.data["text/html"]
    assert result.data["text/plain"].startswith("<RunReport matmul on cpu")
    assert [each.text for each in outputs if each.output_type == "stream"] == []
