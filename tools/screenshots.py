"""Pictures of the Copilot for the README: a screenshot, and an animation of the budget's slider.

    python tools/screenshots.py [FOLDER]

Starts a service and its pages, and draws them in a headless Chromium. Needs the extras service, ui and dev.
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import sync_playwright

from accelera.ui import start

FOLDER = Path(__file__).parents[1] / "docs" / "images"
STILL, MOVING = "fit.png", "budget.webp"
SIZE, SMALL = {"width": 1360, "height": 1230}, {"width": 1200, "height": 900}
SHOWN = (900, 675)
BUDGETS = ("6", "7", "8", "9", "10", "11", "12", "13", "14", "15")
FRAME_MS, LAST_MS = 700, 2500
MOST_BYTES = 300_000
_SHOWS = """texts => {
    const drawn = [...document.querySelectorAll('svg text')].map(one => one.textContent);
    return texts.every(text => drawn.includes(text));
}"""
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")


def main(folder: Path = FOLDER) -> None:
    """Write both pictures into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with pages() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        write_all(browser, url, folder)
        browser.close()
    for name in (STILL, MOVING):
        print(f"{folder / name}: {(folder / name).stat().st_size // 1000} kB")


def write_all(browser: Any, url: str, folder: Path, budgets: Sequence[str] = BUDGETS) -> None:
    """Write the screenshot and the animation of a UI at ``url``."""
    (folder / STILL).write_bytes(smaller(still(browser, url)))
    (folder / MOVING).write_bytes(moving(browser, url, budgets))


def still(browser: Any, url: str) -> bytes:
    """Return the start page as PNG."""
    page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
    show(page, url)
    found: bytes = page.screenshot()
    page.close()
    return found


def smaller(png: bytes) -> bytes:
    """Return a PNG of 256 colours, which flat pictures do not miss."""
    file = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def moving(browser: Any, url: str, budgets: Sequence[str]) -> bytes:
    """Return an animated WebP: the budget rises from key to key until all fits."""
    page = browser.new_page(viewport=SMALL, color_scheme="light", reduced_motion="reduce")
    frames = []
    show(page, f"{url}/?budget={budgets[0]}")
    for index, budget in enumerate(budgets):
        if index:
            page.get_by_role("slider", name="Memory budget").press("ArrowRight")
        page.wait_for_function(_SHOWS, arg=[f"budget {budget} GB", f"you: {budget} GB"])
        settle(page)
        frame = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(frame.resize(SHOWN, Image.Resampling.LANCZOS))
    page.close()
    for quality in (80, 65, 50, 35):
        file = io.BytesIO()
        durations = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
        options = {"append_images": frames[1:], "duration": durations, "loop": 0, "method": 6}
        frames[0].save(file, "WEBP", save_all=True, quality=quality, **options)
        if file.tell() <= MOST_BYTES:
            break
    return file.getvalue()


def show(page: Any, url: str) -> None:
    """Open a page and wait until all is drawn."""
    page.goto(url)
    page.locator("[data-testid=stMain] h1").first.wait_for(timeout=60_000)
    settle(page)


def settle(page: Any) -> None:
    """Wait until a page's script has ended and its charts are there."""
    page.wait_for_timeout(300)
    page.locator('[data-testid=stApp][data-test-script-state="notRunning"]').wait_for(timeout=60_000)
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=60_000)
    page.wait_for_timeout(300)


@contextmanager
def pages() -> Iterator[str]:
    """Yield the address of a UI in front of a service of its own."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the UI does
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        command = [sys.executable, "-m", "accelera", "serve", "--db", f"sqlite:///{folder}/copilot.db"]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert service.stdout is not None
        address = service.stdout.readline().split()[-1]
        ui = start(address, port=port)
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 60
            while not _answers(url) and time.monotonic() < until:
                time.sleep(0.2)
            yield url
        finally:
            for process in (ui, service):
                process.terminate()
                process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:2]))
