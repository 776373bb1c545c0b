"""Time from a slider's move to the charts of the page Fit, in a headless Chromium.

    python -m benchmarks pages
    python -m benchmarks pages --cases generate --save pages

A move is one press of an arrow key, to a value that has not been asked for before. The time runs from the
press to the first and to the last change in a chart, or in the verdict, which is all that the link's rate
changes. Browser, pages and service share the machine.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks import cases
from benchmarks.goals import Goal, judged
from benchmarks.service_load import served

CASES = {
    "generate": "/?runs=Generate&model=7B&budget=6&link=4",
    "train": "/?runs=Train&model=1.3B&budget=6&link=4&context=256",
    "infer": "/?runs=Infer&model=13B&budget=6&link=4",
}
"""Pages with a budget that is short, so that each chart has something to draw."""
MOVES = {"Memory budget (GB)": 8, "Link to host (GB/s)": 5, "Batch (sequences)": 6, "Context (tokens)": 3}
"""Sliders, and how often each is moved one step up."""
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
WIDE: Any = {"width": 1360, "height": 1400}
_WATCH = """() => {
    window.changes = [];
    window.addEventListener('keydown', () => {
        window.changes = [];
        window.pressed = performance.now();
    }, true);
    const inside = '[data-testid=stEChartsChart] svg, [data-testid=stMain] h1, [data-testid=stMain] p';
    new MutationObserver(found => {
        if (found.some(each => each.target.closest && each.target.closest(inside)))
            window.changes.push(performance.now() - window.pressed);
    }).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""
_QUIET_MS = 400
"""As long as no chart changes, after the page's script has ended."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the figures."""
    options = cases.parser("pages", CASES).parse_args(arguments)
    if options.small:
        options.cases = list(options.cases)[:1]
    return cases.run(
        options, {name: functools.partial(_moved, path, options.small) for name, path in CASES.items()}
    )


def _chromium() -> str:
    """Return Debian's Chromium; ends with what to do where it is absent."""
    found = shutil.which("chromium")
    if found is None:
        sys.exit("[pages] there is no Chromium here: apt install chromium, or make test-services")
    return found


def _moved(path: str, small: bool) -> dict[str, Any]:
    """Move each slider of a page and return milliseconds to the first and to the last change of a chart."""
    with served("--ui") as told, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium(), args=list(SWITCHES))
        page = browser.new_page(viewport=WIDE, reduced_motion="reduce")
        page.goto(told["ui"] + path)
        _settle(page)
        page.evaluate(_WATCH)
        figures = {}
        for slider, moves in list(MOVES.items())[: 1 if small else None]:
            found = [_move(page, slider) for _ in range(1 if small else moves)]
            figures[slider] = _figures(found)
            print(f"{slider}: first chart {found_text(found, 0)}, all {found_text(found, 1)}", flush=True)
        browser.close()
    goals = [
        Goal("S5", f"{slider}, {what} after a move: median, ms", figures[slider][key], bound)
        for slider in figures
        for what, key, bound in (("first chart", "first_p50_ms", 500), ("all charts", "all_p50_ms", 1000))
    ]
    return {"sliders": figures, "goals": judged(goals)}


def _move(page: Any, slider: str) -> tuple[float, float]:
    page.get_by_role("slider", name=slider).press("ArrowRight")
    page.wait_for_function("window.changes.length > 0", timeout=600_000)
    _settle(page)
    changes: Sequence[float] = page.evaluate("window.changes")
    return min(changes), max(changes)


def _settle(page: Any) -> None:
    """Wait until the page's script has ended and its charts have been still for a while."""
    done = '[data-testid=stApp][data-test-script-state="notRunning"]'
    page.locator("[data-testid=stMain] h1").first.wait_for()
    before = -1
    while True:
        page.wait_for_timeout(_QUIET_MS)
        page.locator(done).wait_for(timeout=600_000)
        count = page.evaluate("(window.changes || []).length")
        if count == before:
            return
        before = count


def _figures(found: Sequence[tuple[float, float]]) -> dict[str, float]:
    first, last = zip(*found, strict=True)
    return {
        "moves": len(found),
        "first_p50_ms": statistics.median(first),
        "first_most_ms": max(first),
        "all_p50_ms": statistics.median(last),
        "all_most_ms": max(last),
    }


def found_text(found: Sequence[tuple[float, float]], which: int) -> str:
    """Return median and most in words."""
    values = [each[which] for each in found]
    return f"{statistics.median(values):.0f} ms (most {max(values):.0f})"


if __name__ == "__main__":
    main(sys.argv[1:])
