"""Page Fit in a browser: the verdict, every control, the ways out, and links that open the same view."""

from __future__ import annotations

import io
import json
from functools import partial
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from accelera.service import CopilotClient
from tests.chromium import awaited
from tests.ui.conftest import Site, chart_texts, headline, saying, settled

TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512, "n_positions": 128}


def test_the_first_screen_is_a_verdict(site: Site) -> None:
    with site.page() as page:
        assert headline(page) == "Generating with a 7B model needs 14.0 GB. You are 2.0 GB short."
        text = page.locator("[data-testid=stMain]").inner_text()
        assert "× as much" in text
        assert "16 GB card fits" in text
        assert text.index("activations") < text.index("of that:") < text.index("above the budget")
        chart_texts(page, "budget 12 GB", "peak 14.0 GB", "least possible", "you: 12 GB")
        assert page.get_by_role("img", name="Memory over").count() == 1


def test_a_way_out_is_one_press_and_the_link_says_so(site: Site) -> None:
    with site.page("/?runs=Train&model=1.3B&batch=8&card=24+GB+card") as page:
        assert headline(page) == "Training a 1.3B model needs 39.6 GB. You are 15.6 GB short."
        page.get_by_role("button", name="Batch 3 fits").click()
        told(page, "Training a 1.3B model needs 22.9 GB. It fits")
        page.wait_for_function("location.search.includes('batch=3')")
        settled(page)
        address = page.evaluate("location.href")
        same = headline(page)
    with site.page(address.removeprefix(site.url)) as page:
        assert headline(page) == same


def test_a_card_sets_budget_and_link(site: Site) -> None:
    with site.page() as page:
        page.get_by_role("button", name="16 GB card fits").click()
        told(page, "It fits")
        page.get_by_text("still fits").first.wait_for()
        page.wait_for_function("location.search.includes('card=16')")
        settled(page)
        assert slider(page, "Memory budget") == "16"
        assert slider(page, "Link to host") == "25"


def test_sliders_move_by_keys_and_are_in_the_link(site: Site) -> None:
    names = {"Batch": "batch", "Context": "context", "Memory budget": "budget", "Link": "link"}
    with site.page("/?model=125M") as page:
        before = {name: slider(page, name) for name in names}
        for name, field in names.items():
            page.get_by_role("slider", name=name).press("ArrowRight")
            page.wait_for_function(f"location.search.includes('{field}=')")
        for name in names:
            awaited(page, partial(slider, page, name), partial(ne, before[name]))


def test_choices_change_the_verdict(site: Site) -> None:
    with site.page() as page:
        choose(page, "Model", "13B")
        told(page, "13B")
        page.get_by_role("radio", name="Train").or_(page.get_by_role("button", name="Train")).first.click()
        before = told(page, "Training a 13B")
        settled(page)
        choose(page, "Element type", "float32")
        page.wait_for_function("location.search.includes('dtype=float32')")
        before = told(page, "Training a 13B", other_than=before)
        settled(page)
        choose(page, "Model", "Own shape")
        told(page, "Training a 7B", other_than=before)
        settled(page)
        page.get_by_label("Layers").fill("2")
        page.get_by_label("Layers").press("Enter")
        page.wait_for_function("location.search.includes('layers=2')")
        told(page, "parameters")
        settled(page)
        page.get_by_role("button", name="FIFO").click()
        page.wait_for_function("location.search.includes('policies=FIFO')")


def test_keys_alone_reach_a_verdict(site: Site) -> None:
    with site.page() as page:
        before = headline(page)
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.getAttribute('aria-label')") == "Memory budget (GB)":
                break
        else:
            pytest.fail("the tabulator does not reach the budget")
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        told(page, "It fits", other_than=before)


def test_a_configuration_gets_a_verdict_a_plan_and_a_trace(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    link = "/?model=Hugging+Face+config&runs=Infer&context=128&budget=1"
    with site.page(link) as page:
        assert headline(page) == "Will your model fit?"
        file.write_text("no JSON")
        page.locator("input[type=file]").set_input_files(str(file))
        page.get_by_text("The file is no JSON object").wait_for()
    with site.page(link) as page:
        file.write_text(json.dumps(TINY))
        page.locator("input[type=file]").set_input_files(str(file))
        page.get_by_role("heading", name="Running GPT2").wait_for(timeout=300_000)
        settled(page)
        assert "left" in headline(page)
        assert "optimizer" in page.locator("[data-testid=stTable]").inner_text()
        said = headline(page)
        address = awaited(page, lambda: page.url, lambda url: "config=" in url)
        with saying(page, "Saved"):
            page.get_by_role("button", name="Save to history").click()
        page.get_by_role("button", name="Capture its accesses").click()
        page.get_by_role("link", name="Open it").click(timeout=300_000)
        page.get_by_text("Back to a model").wait_for()
        told(page, "needs")
    with site.page(address) as page:
        page.get_by_text("The configuration is the link's.").wait_for()
        told(page, said)
    with site.page("/history") as page:
        kept = page.locator("[class*=st-key-run_]").filter(has_text="Running GPT2")
        kept.first.get_by_role("link", name="Open again").click()
        page.get_by_text("The configuration is the link's.").wait_for()
        told(page, said)


def test_an_answer_is_kept_and_taken_away(site: Site) -> None:
    with site.page("/?model=125M&budget=1") as page:
        with saying(page, "Saved"):
            page.get_by_role("button", name="Save to history").click()
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download the PNG").click()
        assert Path(download.value.path()).read_bytes()[:4] == b"\x89PNG"
        with page.expect_download() as download:
            page.get_by_role("button", name="Report").click()
        report = Path(download.value.path()).read_text(encoding="utf-8")
        assert report.startswith("<!DOCTYPE html>")
        assert "125M" in report
    with CopilotClient(site.service) as copilot:
        assert "125M" in copilot.runs(1)[0].headline


def test_another_run_paints_the_memory_as_a_fresh_page_does(site: Site) -> None:
    def picture(page: Any) -> NDArray[np.int64]:
        png = page.locator(".st-key-occupancy").screenshot()
        return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), np.int64)

    with site.page("/?model=7B&budget=12&runs=Train") as page:
        fresh = picture(page)
    with site.page("/?model=7B&budget=12") as page:
        page.get_by_test_id("stSidebar").get_by_text("Train", exact=True).click()
        told(page, "Training")

        def other_pixels() -> float:
            shown = picture(page)
            if shown.shape != fresh.shape:
                return 1.0
            return float((np.abs(shown - fresh).max(axis=2) > 40).mean())

        awaited(page, other_pixels, lambda share: share < 0.002)


def told(page: Any, part: str, other_than: str = "") -> str:
    """Return the headline once it says something, and is another than before."""
    return awaited(page, lambda: headline(page), lambda now: part in now and now != other_than)


def slider(page: Any, name: str) -> str:
    found = page.get_by_role("slider", name=name)
    return str(found.get_attribute("aria-valuetext") or found.input_value())


def choose(page: Any, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()
