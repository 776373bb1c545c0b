"""The report as a reader has it: in Chromium, offline, in light and dark, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from accelera.report import report_page
from tests.charts.views import NAMES, views
from tests.chromium import awaited

CHARTS = ["memory", "policies", "curves", "misses", "timeline", "scores"]
# Texts of a drawing that are cut by its edges, and pairs of texts that lie on each other.
MISPLACED = """() => [...document.querySelectorAll(".chart svg")].flatMap((svg) => {
  const edge = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].filter((one) => one.textContent.trim());
  const boxes = texts.map((one) => [one.textContent, one.getBoundingClientRect()]);
  const name = svg.closest(".chart").id;
  const cut = boxes
    .filter(([, box]) => box.left < edge.left - 1 || box.right > edge.right + 1
      || box.top < edge.top - 1 || box.bottom > edge.bottom + 1)
    .map(([text]) => `${name}: ${text} is cut`);
  const over = [];
  // The box of a slanted text is larger than the text.
  const level = boxes.filter((_, index) => !/matrix|rotate/.test(texts[index].getAttribute("transform")));
  level.forEach(([text, box], index) => level.slice(index + 1).forEach(([other, there]) => {
    const wide = Math.min(box.right, there.right) - Math.max(box.left, there.left);
    const tall = Math.min(box.bottom, there.bottom) - Math.max(box.top, there.top);
    if (wide > 2 && tall > 4) over.push(`${name}: ${text} lies on ${other}`);
  }));
  return [...cut, ...over];
})"""

SQUARES = """() => {
  const edge = document.querySelector("#scores").getBoundingClientRect();
  return [...document.querySelectorAll("#scores svg path[fill^='#'], #scores svg path[fill^='rgb']")]
    .map((one) => one.getBoundingClientRect())
    .map((box) => ({x: box.x - edge.x, y: box.y - edge.y, width: box.width, height: box.height}))
    .filter((box) => box.height < 60 && box.width > 2);
}"""


# Resolved when all charts have the width of their places, and frames have been drawn since. The page's own
# rule forbids wait_for_function.
REDRAWN = """(width) => new Promise((done) => {
  const look = (frames) => {
    const fits = innerWidth === width && [...document.querySelectorAll(".chart")].every((one) => {
      const svg = one.querySelector("svg");
      return !svg || Math.abs(svg.clientWidth - parseFloat(getComputedStyle(one).width)) <= 1;
    });
    if (fits && frames === 3) done();
    else requestAnimationFrame(() => look(fits ? frames + 1 : 0));
  };
  look(0);
})"""


@contextmanager
def opened(browser: Any, tmp_path: Path, name: str, width: int = 1100, theme: str = "light") -> Iterator[Any]:
    file = tmp_path / "report.html"
    file.write_text(report_page({**views(name), "title": name, "facts": [], "largest": []}), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, offline=True, reduced_motion="reduce"
    )
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: asked.url.startswith("file:") or wrong.append(asked.url))
    page.goto(file.as_uri())
    page.wait_for_selector("#memory svg")
    yield page
    context.close()
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_cut_and_none_lies_on_another(browser: Any, tmp_path: Path, name: str) -> None:
    with opened(browser, tmp_path, name) as page:
        for width in (1360, 1000, 700, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(REDRAWN, width)
            assert page.evaluate("document.querySelector('#memory svg').clientWidth") < width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(MISPLACED) == [], width


def test_a_key_moves_the_budget_and_every_chart(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "training") as page:
        before = {one: page.inner_html(f"#{one}") for one in CHARTS}
        said = page.inner_text("#what-if")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "budget"
        page.keyboard.press("ArrowLeft")
        awaited(page, lambda: page.inner_text("#what-if"), lambda now: now != said)
        after = {one: page.inner_html(f"#{one}") for one in before}
        assert [one for one in before if before[one] != after[one]] == CHARTS[:4]
        budget = page.inner_text("output")
        assert page.get_attribute("#budget", "aria-valuetext") == budget
        assert f"budget {budget}" in page.text_content("#memory svg")
        assert f"you: {budget}" in page.text_content("#curves svg")
        assert f"What {budget} makes you move" in page.inner_text("#policies-title")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        awaited(page, lambda: page.inner_text("#what-if"), lambda now: now == said)
        assert {one: page.inner_html(f"#{one}") for one in before} == before


def test_every_budget_of_the_slider_is_drawn(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "generation", 390) as page:
        page.focus("#budget")
        page.keyboard.press("Home")
        for _ in range(int(page.get_attribute("#budget", "max"))):
            page.keyboard.press("ArrowRight")
            assert page.locator("#policies svg").count() == 1
        awaited(page, lambda: page.inner_text("#what-if"), lambda said: "Everything fits" in said)
        assert "no policy has to" in " ".join(page.text_content("#policies svg").split())


def test_what_the_pointer_shows(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "hostile") as page:
        for chart in CHARTS:
            box = page.locator(f"#{chart}").bounding_box()
            for share in (0.3, 0.5, 0.7):
                for height in (0.15, 0.3, 0.5):
                    page.mouse.move(box["x"] + share * box["width"], box["y"] + height * box["height"])
        assert page.locator("img").count() == 0
    with opened(browser, tmp_path, "training") as page:
        box = page.locator("#memory").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
        shown = awaited(page, lambda: page.inner_text("#memory"), lambda text: "operation " in text)
        assert "weights" in shown
        assert "function" not in shown
        assert "%." not in shown


def test_squares_of_scores_fill_their_cells_and_name_themselves(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "training") as page:
        for width in (1100, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(REDRAWN, width)
            found = page.evaluate(SQUARES)
            cells = views("training")["scores"]["cells"]
            assert len(found) == len(cells)
            tensors = len(views("training")["scores"]["tensors"])
            step = (page.evaluate("document.querySelector('#scores').clientWidth") - 100) / tensors
            assert {round(box["width"] / step, 1) for box in found} == {1.0}
        page.locator("#scores").scroll_into_view_if_needed()
        place, box = page.locator("#scores").bounding_box(), page.evaluate(SQUARES)[0]
        page.mouse.move(place["x"] + box["x"] + box["width"] / 2, place["y"] + box["y"] + box["height"] / 2)
        assert "score 0" in page.inner_text("#scores")


def test_the_page_follows_a_change_of_theme_and_prints_in_light(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "training", theme="dark") as page:
        dark = page.inner_html("#curves")
        page.emulate_media(color_scheme="light")
        awaited(page, lambda: page.inner_html("#curves"), lambda drawn: drawn != dark)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details[open]").count() == 6


@pytest.mark.parametrize(("width", "theme"), [(1100, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(browser: Any, tmp_path: Path, width: int, theme: str) -> None:
    with opened(browser, tmp_path, "training", width, theme) as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        found = Axe().run(page).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious] == []


MIDDLE = """([place, colour]) => {
  const found = [...document.querySelectorAll(`#${place} svg path`)].find((one) =>
    (one.getAttribute("fill") || "").toLowerCase() === colour && one.getBoundingClientRect().width > 1);
  found.scrollIntoView({ block: "center" });
  const box = found.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""


@pytest.mark.parametrize(
    ("place", "colour", "said"),
    [
        ("policies", "#0072b3", " moved per step"),
        ("timeline", "#0072b2", "compute: "),
        ("timeline", "#e69f00", "load: "),
    ],
)
def test_bars_and_spans_say_what_they_are(
    browser: Any, tmp_path: Path, place: str, colour: str, said: str
) -> None:
    with opened(browser, tmp_path, "training") as page:
        drawn = page.text_content(f"#{place} svg")
        page.mouse.move(*page.evaluate(MIDDLE, [place, colour]))
        awaited(page, lambda: page.text_content(f"#{place}").replace(drawn, ""), lambda shown: said in shown)
