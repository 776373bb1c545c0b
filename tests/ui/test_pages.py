"""The other pages in a browser, control by control, and what they say when something is wrong."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from accelera.errors import JobError
from accelera.service import CopilotClient
from accelera.simulator import generate_synthetic_trace
from accelera.trace import write_trace
from tests.chromium import awaited
from tests.service.asking import ENDLESS
from tests.ui.conftest import Site, chart_texts, headline, saying, settled
from tests.ui.running import running_service, running_ui

TOKEN = "a-token-of-the-tests"
_AFTER_THE_SLIDER = "() => new Promise(done => setTimeout(done, 300))"
"""A slider that is moved in a form tells the form by a timer of the page, which this one comes after."""


@pytest.fixture(scope="module")
def copilot(site: Site) -> Any:
    with CopilotClient(site.service) as client:
        yield client


def test_the_seeds_simulation(site: Site) -> None:
    with site.page("/policies") as page:
        assert headline(page) == "LRU finds 27% of 580 accesses in a cache of 64 MB."
        text = page.locator("[data-testid=stMain]").inner_text()
        for told in ("154", "426", "417", "Reuse entropy", "4.55 bits", "Temporal locality", "W_embedding"):
            assert told in text, told
        assert page.locator("[data-testid=stTable]").first.locator("tbody tr").count() == 20
        page.get_by_role("slider", name="Layers").press("ArrowRight")
        page.get_by_role("combobox", name="Cache policy").click()
        page.get_by_role("option", name="BELADY").click()
        page.get_by_label("Validate the trace").press("Space")
        page.evaluate(_AFTER_THE_SLIDER)
        page.get_by_role("button", name="Run simulation").click()
        page.get_by_role("heading", name="BELADY finds").wait_for()
        awaited(page, lambda: main_text(page), lambda text: "Reuse entropy" not in text)
        page.wait_for_function("location.search.includes('policy=BELADY')")
        page.wait_for_function("location.search.includes('num_layers=13')")


def test_policies_side_by_side(site: Site) -> None:
    with site.page("/policies?num_layers=4&share=50") as page:
        before = chart_texts(page, "least possible")
        page.get_by_role("slider", name="Memory").press("ArrowRight")
        page.wait_for_function("location.search.includes('share=60')")
        awaited(page, lambda: chart_texts(page), lambda now: now != before)
        settled(page)
        page.get_by_text("Bytes moved", exact=True).click()
        page.wait_for_function("location.search.includes('measure=')")
        awaited(page, lambda: chart_texts(page), lambda now: any("moved per pass" in one for one in now))


def test_timeline(site: Site) -> None:
    with site.page("/timeline?model=125M&budget=2&runs=Train&batch=8") as page:
        assert headline(page).startswith("It takes")
        assert any("compute" in one for one in chart_texts(page, "budget 2 GB", "compute"))
        before = main_text(page)
        page.get_by_role("slider", name="Load ahead").press("ArrowRight")
        page.wait_for_function("location.search.includes('ahead=2')")
        awaited(page, lambda: main_text(page), lambda now: now != before)


def test_a_trace_is_uploaded_asked_about_and_deleted(
    site: Site, copilot: CopilotClient, tmp_path: Path
) -> None:
    file = tmp_path / "small.csv"
    write_trace(generate_synthetic_trace(num_layers=1, batch_size=2, seq_length=16, seed=7), file)
    with site.page("/traces") as page:
        upload = page.locator("input[type=file]").first
        assert "(required)" not in main_text(page)
        page.get_by_role("button", name="Store the trace").click()
        page.get_by_text("Choose a file first.").wait_for()
        upload.set_input_files(str(file))
        page.get_by_text("small.csv").first.wait_for()
        page.get_by_role("button", name="Store the trace").click()
        page.get_by_text("accesses of").first.wait_for()
        settled(page)
        digest = copilot.traces(1)[0].digest
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").first.click()
        assert Path(download.value.path()).read_bytes()[:4] == b"PAR1"
        page.get_by_role("button", name="Sweep policies").click()
        page.get_by_role("button", name="Show").first.wait_for()
    copilot.advise(digest, "90%")
    says = (
        ("/", "short"),
        ("/policies", "small.csv in"),
        ("/timeline", "the first load included"),
    )
    for path, told in says:
        with site.page(f"{path}?trace={digest}") as page:
            assert told in headline(page)
            assert page.get_by_role("button", name="Back to a model").count() == 1
            pills = page.locator("[data-testid=stSidebar]").get_by_role("button", name="GDSF")
            assert pills.count() == (1 if path == "/" else 0)
            if path == "/":
                at = _moved_slider(page)
                with saying(page, "Saved"):
                    page.get_by_role("button", name="Save to history").click()
                page.get_by_role("button", name="Back to a model").click()
                page.get_by_role("heading", name="Generating with a 7B").wait_for()
    with site.page("/history") as page:
        page.get_by_role("link", name="Result of the job").first.click()
        page.get_by_text("Worth keeping in memory").or_(
            page.get_by_text("Memory asked about")
        ).first.wait_for()
        page.get_by_text("No schedule moves less than").wait_for()
    with site.page("/history") as page:
        page.get_by_role("link", name="Open again").first.click()
        page.get_by_role("slider", name="Memory budget").wait_for()
        assert page.get_by_role("slider", name="Memory budget").get_attribute("aria-valuetext") == at
    with site.page("/traces") as page:
        page.get_by_text("Sweep small.csv").wait_for()
        page.get_by_role("button", name="Show").last.click()
        page.get_by_text("moves least by and large").wait_for()
        chart_texts(page, "knee", "MB moved per replay")
        page.get_by_text("All of it, as JSON").click()
        page.locator("[data-testid=stJson]").wait_for()
        settled(page)
        page.get_by_role("button", name="Delete", exact=True).first.click()
        page.get_by_role("button", name="Delete the trace").click()
        page.get_by_text("Nothing is stored yet").wait_for()
    assert copilot.traces() == []
    with site.page(f"/?trace={'0' * 64}") as page:
        assert "/v1/" not in main_text(page)
        assert page.get_by_role("button", name="Try again").count() == 0
        page.get_by_role("link", name="See the traces").click()
        page.get_by_text("Nothing is stored yet").wait_for()


def _moved_slider(page: Any) -> str:
    """Move the budget of a stored trace one step up, and return where it stands then."""
    slider = page.get_by_role("slider", name="Memory budget")
    before = slider.get_attribute("aria-valuetext")
    slider.press("ArrowRight")
    page.wait_for_function("location.search.includes('memory=')")
    settled(page)
    return awaited(page, lambda: str(slider.get_attribute("aria-valuetext")), lambda now: now != before)


def test_what_is_no_trace_is_refused_in_words(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "broken.parquet"
    file.write_bytes(b"PAR1 and nothing else")
    with site.page("/traces") as page:
        page.locator("input[type=file]").first.set_input_files(str(file))
        page.get_by_text("broken.parquet").first.wait_for()
        page.get_by_role("button", name="Store the trace").click()
        page.get_by_role("alert").first.wait_for()
        assert "Traceback" not in page.locator("body").inner_text()


def test_a_job_is_cancelled_and_run_again(site: Site, copilot: CopilotClient) -> None:
    sources = [{**ENDLESS["source"], "seed": seed} for seed in (1, 2, 3)]
    busy = [copilot.submit("sweeps", {"source": source}) for source in sources]
    with site.page("/traces") as page:
        page.get_by_role("button", name="Cancel").first.click()
        page.get_by_role("button", name="Run again").first.wait_for()
    for job in busy:
        if not copilot.job(job.id).has_ended:
            copilot.cancel(job.id)
        with pytest.raises(JobError, match="cancelled"):
            copilot.wait(job.id)
    with site.page("/history") as page:
        page.get_by_role("button", name="Run again").first.click()
        (again,) = awaited(
            page, lambda: [job for job in busy if not copilot.job(job.id).has_ended], lambda some: bool(some)
        )
    copilot.cancel(again.id)


def test_history_compares_and_opens_again(site: Site, copilot: CopilotClient) -> None:
    # The newest two are of different kinds: what is compared at first are two of one kind.
    for path in ("/?budget=12", "/timeline", "/?budget=13"):
        with site.page(path) as page:
            told = headline(page)
            with saying(page, "Saved"):
                page.get_by_role("button", name="Save to history").click()
    with site.page("/history") as page:
        table = page.locator("[data-testid=stTable]").first.inner_text()
        assert "12.0 GB" in table
        assert "13.0 GB" in table
        page.get_by_role("link", name="Open again").first.click()
        page.get_by_role("heading", name="Generating with a 7B").wait_for()
        awaited(page, lambda: headline(page), lambda now: now == told)
        page.wait_for_function("location.search.includes('budget=13')")
    count = len(copilot.runs())
    with site.page("/history") as page:
        page.get_by_role("button", name="Delete").first.click()
        awaited(page, lambda: len(copilot.runs()), lambda left: left == count - 1)


def test_a_token_is_asked_for_and_a_wrong_one_told(site: Site) -> None:
    with (
        running_service(TOKEN) as service,
        running_ui(service, TOKEN) as url,
        site.page(url) as page,
    ):
        enter(page, "another-token-123")
        page.get_by_text("This is not the token").wait_for()
        enter(page, TOKEN)
        page.get_by_role("heading", name="Generating with a 7B").wait_for()
        with running_ui(service, "another-token-123") as other:
            page.goto(other)
            enter(page, "another-token-123")
            page.get_by_text("The token is wrong or missing.").wait_for()
            page.get_by_text("ACCELERA_COPILOT_TOKEN").first.wait_for()


def test_a_slow_service_is_waited_for_and_a_dead_one_says_what_to_do(site: Site) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        running_ui(f"http://127.0.0.1:{mute.getsockname()[1]}") as url,
        site.page(url, drawn=False) as page,
    ):
        page.get_by_text("Asking the service").wait_for()
        mute.close()
        page.get_by_text("The service does not answer").wait_for()
        page.get_by_text("Asking the service").wait_for(state="hidden")
        page.get_by_text("accelera serve --ui").wait_for()
        page.get_by_role("button", name="Try again").click()
        page.get_by_text("The service does not answer").wait_for()


def main_text(page: Any) -> str:
    return str(page.locator("[data-testid=stMain]").inner_text())


def enter(page: Any, token: str) -> None:
    field = page.get_by_label("Token of the service")
    field.fill(token)
    field.press("Enter")


def test_more_than_a_limit_says_what_to_do(site: Site) -> None:
    with site.page("/policies") as page:
        page.get_by_role("combobox", name="Mode", exact=True).click()
        page.get_by_role("option", name="decode").click()
        page.get_by_label("Sequence").fill("131072")
        page.get_by_label("Sequence").press("Tab")
        page.get_by_role("button", name="Run simulation").click()
        page.get_by_text("That is more than the service takes.").wait_for()
        assert "fewer layers" in page.locator("body").inner_text()
        page.get_by_label("Sequence").fill("10000000")
        page.get_by_label("Sequence").press("Tab")
        page.get_by_role("button", name="Run simulation").click()
        page.get_by_text("less than or equal to 1048576").wait_for()
