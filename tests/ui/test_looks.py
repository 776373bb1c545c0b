"""Every page in light, dark and 390 pixels: accessible, no wider than the screen, and asking nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import axe_playwright_python
import pytest

from accelera.service import CopilotClient
from accelera.simulator import generate_synthetic_trace
from accelera.trace import write_trace
from tests.ui.conftest import Site

PAGES = ("/", "/policies?num_layers=2", "/timeline?model=125M&budget=1", "/traces", "/history")
LOOKS = {"light": {}, "dark": {"dark": True}, "narrow": {"narrow": True}}


@pytest.fixture(scope="module", autouse=True)
def _something_to_show(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("traces") / "shown.parquet"
    trace = generate_synthetic_trace(num_layers=1, batch_size=2, seq_length=16)
    write_trace(trace, file)
    with CopilotClient(site.service) as copilot:
        stored = copilot.upload_trace(file)
        for budget in ("1MB", "2MB"):
            verdict = copilot.fit(stored.digest, budget)["verdict"]
            request = {"source": stored.digest, "budget": budget}
            copilot.save_run(
                "fit", request, title=f"in {budget}", headline=verdict["headline"], figures=verdict
            )
        copilot.sweep(stored.digest, policies=["lru"], capacities=2)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("look", LOOKS)
def test_accessible_no_wider_than_the_screen_and_alone(site: Site, path: str, look: str) -> None:
    with site.page(path, **LOOKS[look]) as page:
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        main = "document.querySelector('[data-testid=stMain]')"
        assert page.evaluate(f"{main}.scrollWidth <= {main}.clientWidth")
        hosts = {urlsplit(url).hostname for url in page.asked if not url.startswith(("data:", "blob:"))}
        assert hosts == {"127.0.0.1"}


def serious(page: Any) -> list[str]:
    """Return what axe calls serious or critical."""
    script = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js"))
    page.add_script_tag(path=str(script))
    found = page.evaluate("axe.run()")
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
