"""A headless Chromium for tests of pages; Debian's package, which CI installs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from playwright.sync_api import sync_playwright

Found = TypeVar("Found")
PATIENCE_S = 300
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")


def needed_chromium() -> str:
    """Return the program; skips the test where it is absent, as no Python package brings it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is no Python package and is not on this machine: apt install chromium")
    return program


@contextmanager
def launched() -> Iterator[Any]:
    """Yield a browser. While it is open this thread has an event loop, so it is closed after each file."""
    program = needed_chromium()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(SWITCHES))
        yield browser
        browser.close()


def awaited(page: Any, find: Callable[[], Found], is_wanted: Callable[[Found], bool]) -> Found:
    """Return what is found on a page once it is as wanted: what follows from a press is drawn later."""
    until = time.monotonic() + PATIENCE_S
    while not is_wanted(found := find()):
        assert time.monotonic() < until, f"it stays {found!r}"
        page.wait_for_timeout(20)
    return found
