"""Results of a notebook as a reader sees them: in Chromium, light and dark, on a desk and on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.chromium import launched

SETUP = """
import numpy as np
import torch
import accelera
values = np.ones((2000, 2000), np.float32)
np.save("A.npy", values)
engine = accelera.MatrixEngine("cpu", budget="128MiB", enable_progress=False)
trace = accelera.generate_synthetic_trace("MLP", num_layers=4, batch_size=8, mode="training")
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 32))
"""
CELLS = {
    "Plan": "engine.plan('A.npy', 'A.npy', out='C.npy', budget='40MiB')",
    "Plan in stages": "engine.plan_evaluate(accelera.lazy(values) @ values.T + 1.0)",
    "RunReport": "engine.matmul('A.npy', 'A.npy', out='C.npy', budget='40MiB'); engine.last_report",
    "Advice": "accelera.advise(trace, '60%')",
    "Report": "accelera.simulate(trace, '60%', 'arc')",
    "Report of three tiers": "accelera.simulate(trace, 'gpu-24gb', 'lru')",
    "Estimate": "accelera.estimate(model, torch.ones(2, 64), budget='1MiB')",
    "Sweep": "accelera.sweep(trace, ['lru', 'arc', 'fifo', 'belady'], 6, progress=False)",
    "OffloadPlan": "accelera.plan_offload(model, torch.ones(2, 64), '64MiB')",
    "ExecutionResult": "accelera.StrategyManager().execute([1, 2], lambda task: task)",
    "Trace": "trace",
    "Matrix": "accelera.Matrix(values)",
    "Store": "accelera.open_store('A.npy')",
    "MemoryReport": "accelera.budget_report()",
}
WIDTHS = (800, 390)
COLORS = {"light": ("#ffffff", "#1f1f1f"), "dark": ("#111111", "#e0e0e0")}
"""Background and text of the notebook's theme."""
LOOKS = [(scheme, theme) for scheme in COLORS for theme in COLORS]
"""Color scheme of the system, and theme of the notebook, which may differ."""
STYLE = """
body { margin: 8px; background: BACKGROUND; color: TEXT; font: 14px/1.4 sans-serif }
.output { margin-bottom: 16px }
pre { margin: 0; font-family: monospace; color: inherit }
"""
# Notebooks put an output into their page by innerHTML, exported ones contain it.
INSERTION = """
for (const [name, html] of Object.entries(OUTPUTS)) {
  const output = document.createElement("div");
  output.className = "output";
  output.id = name;
  output.innerHTML = html;
  document.body.append(output);
}
"""

# Texts whose contrast with what is behind them is below the ratio, as "text: ratio".
FAINT = """(least) => {
  const parsed = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\\d.]+/g).map(Number);
    return {rgb: [red, green, blue], alpha};
  };
  const over = (top, below, alpha) => top.map((value, index) => alpha * value + (1 - alpha) * below[index]);
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((value) => value / 255)
      .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (element) => {
    if (element === null) return [255, 255, 255];
    const {rgb, alpha} = parsed(getComputedStyle(element).backgroundColor);
    return alpha === 1 ? rgb : over(rgb, background(element.parentElement), alpha);
  };
  const opacity = (element) => element === null ? 1
    : Number(getComputedStyle(element).opacity) * opacity(element.parentElement);
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || ["STYLE", "SCRIPT", "title"].includes(element.tagName)) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const isDrawn = element instanceof SVGElement;
    const {rgb, alpha} = parsed(isDrawn ? style.fill : style.color);
    const behind = background(element);
    const strength = alpha * opacity(element) * (isDrawn ? Number(style.fillOpacity) : 1);
    const pair = [luminance(over(rgb, behind, strength)), luminance(behind)];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < least) faint.push(`${text.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return faint;
}"""
# Elements that reach beyond their viewport, but for those inside a part that scrolls.
OVERFLOWING = """() => {
  const scrolls = (element) => element !== null
    && (["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  const width = document.documentElement.clientWidth;
  return [...document.body.querySelectorAll("*")]
    .filter((element) => !scrolls(element.parentElement))
    .filter((element) => element.getBoundingClientRect().right > width + 0.5)
    .map((element) => `${element.tagName} ends at ${element.getBoundingClientRect().right} of ${width}`);
}"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """HTML of each result, from one notebook that a kernel has executed."""
    folder = tmp_path_factory.mktemp("notebook")
    sources = [SETUP, *CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=170, resources={"metadata": {"path": str(folder)}}).execute()
    results = {}
    for name, cell in zip(CELLS, notebook.cells[1:], strict=True):
        [result] = [output for output in cell.outputs if output.output_type == "execute_result"]
        results[name] = result.data["text/html"]
    return results


@pytest.fixture(scope="module")
def browser(outputs: dict[str, str]) -> Iterator[Any]:
    """A browser; it starts after the notebook has run, since its event loop occupies this thread."""
    with launched() as chromium:
        yield chromium


def page_of(outputs: dict[str, str], theme: str, with_script: bool) -> str:
    """The outputs in a page as a notebook shows them, or as an exported one contains them."""
    background, text = COLORS[theme]
    style = STYLE.replace("BACKGROUND", background).replace("TEXT", text)
    head = (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Results</title><style>{style}</style>'
    )
    if with_script:
        values = json.dumps(outputs).replace("</", "<\\/")
        return f"{head}<body><script>{INSERTION.replace('OUTPUTS', values)}</script></body></html>"
    parts = [f'<div class="output" id="{name}">{html}</div>' for name, html in outputs.items()]
    return f"{head}<body>{''.join(parts)}</body></html>"


@contextmanager
def opened(
    browser: Any, outputs: dict[str, str], folder: Path, scheme: str, theme: str, with_script: bool = True
) -> Iterator[Any]:
    """A page of all outputs without a network; messages of the console and requests fail at the end."""
    file = folder / f"notebook-{scheme}-{theme}.html"
    file.write_text(page_of(outputs, theme, with_script), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": WIDTHS[0], "height": 900},
        color_scheme=scheme,
        offline=True,
        java_script_enabled=with_script,
    )
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url == file.as_uri() or problems.append(request.url))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert problems == []


def shown_boxes(page: Any) -> dict[str, Any]:
    """Boxes of the visible outputs, by name."""
    return {name: page.locator(f'[id="{name}"]').bounding_box() for name in CELLS}


@pytest.mark.parametrize("with_script", [True, False], ids=["script", "static"])
@pytest.mark.parametrize("width", WIDTHS)
def test_outputs_are_visible_and_fit_the_width(
    browser: Any, outputs: dict[str, str], tmp_path: Path, width: int, with_script: bool
) -> None:
    with opened(browser, outputs, tmp_path, "light", "light", with_script) as page:
        page.set_viewport_size({"width": width, "height": 900})
        for name, box in shown_boxes(page).items():
            assert page.locator(f'[id="{name}"]').is_visible(), name
            assert box["width"] > 0, name
            assert box["height"] > 0, name
            assert box["x"] + box["width"] <= width, name
        for frame in page.frames:
            assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth"), frame.name
            assert frame.evaluate(OVERFLOWING) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("scheme", "theme"), LOOKS)
def test_text_is_readable_in_light_and_dark(
    browser: Any, outputs: dict[str, str], tmp_path: Path, scheme: str, theme: str, width: int
) -> None:
    with opened(browser, outputs, tmp_path, scheme, theme) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=tmp_path / f"notebook-{scheme}-{theme}-{width}.png", full_page=True)
        assert {frame.url: faint for frame in page.frames if (faint := frame.evaluate(FAINT, 4.5))} == {}


def test_chart_of_a_sweep_is_in_a_frame_without_scripts(
    browser: Any, outputs: dict[str, str], tmp_path: Path
) -> None:
    with opened(browser, outputs, tmp_path, "light", "light") as page:
        [chart] = page.frames[1:]
        assert chart.locator("svg polyline").count() > 0
        assert page.locator("iframe").get_attribute("sandbox") == ""
