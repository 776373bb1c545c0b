"""A service, its UI and a headless Chromium, one of each per file: an open browser has an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chromium import awaited, launched
from tests.ui.running import running_service, running_ui

_DRAWN = """!document.querySelector('[data-testid=stSkeleton]') &&
    [...document.querySelectorAll('[data-testid=stEChartsChart]')]
    .every(chart => chart.querySelector('svg text, canvas'))"""
_SAID = """text => {
    window.said = new Promise(done => {
        const look = () => document.body.textContent.includes(text) && done();
        const all = {subtree: true, childList: true, characterData: true};
        new MutationObserver(look).observe(document.body, all);
        look();
    });
}"""
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 390, "height": 844}


@dataclass
class Site:
    """Where the service and its UI are, and a browser to look at them.

    Pages of one look share a cache: the five megabytes of the UI's own files are read once.
    """

    service: str
    url: str
    browser: Any
    contexts: dict[tuple[bool, bool], Any] = field(default_factory=dict)

    @contextmanager
    def page(
        self, path: str = "/", *, dark: bool = False, narrow: bool = False, drawn: bool = True
    ) -> Iterator[Any]:
        """Yield a page, with ``drawn`` once all is there; ``page.asked`` are the addresses it has asked."""
        page = self._context(dark, narrow).new_page()
        try:
            page.set_default_timeout(600_000)
            page.asked = []
            page.on("request", lambda request: page.asked.append(request.url))
            page.on("websocket", lambda socket: page.asked.append(socket.url))
            page.goto(path if path.startswith("http") else self.url + path)
            if drawn:
                settled(page)
            yield page
        finally:
            page.close()

    def _context(self, dark: bool, narrow: bool) -> Any:
        if (dark, narrow) not in self.contexts:
            self.contexts[dark, narrow] = self.browser.new_context(
                viewport=NARROW if narrow else WIDE,
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
                accept_downloads=True,
            )
        return self.contexts[dark, narrow]


def settled(page: Any) -> None:
    """Wait until the page's script has ended; what a press is to bring has been awaited before."""
    page.locator("[data-testid=stMain] h1").first.wait_for()
    page.locator('[data-testid=stApp][data-test-script-state="notRunning"]').wait_for(timeout=600_000)
    page.wait_for_function(_DRAWN, timeout=600_000)


def headline(page: Any) -> str:
    return str(page.locator("[data-testid=stMain] h1").first.inner_text()).replace("\u00a0", " ")


def chart_texts(page: Any, *beginnings: str) -> list[str]:
    """Return the texts of all charts, once some begin as given."""

    def found() -> list[str]:
        return list(page.locator("[data-testid=stMain] svg text").all_text_contents())

    def are_there(texts: list[str]) -> bool:
        return all(any(one.startswith(each) for one in texts) for each in beginnings)

    return awaited(page, found, are_there)


@contextmanager
def saying(page: Any, text: str) -> Iterator[None]:
    """Wait until the page has said something since the block began, if only for a moment."""
    page.evaluate(_SAID, text)
    yield
    page.evaluate("window.said")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def site(browser: Any) -> Iterator[Site]:
    with running_service() as service, running_ui(service) as url:
        yield Site(service, url, browser)
