"""One thread for torch: these tests run many small operators, and threads only wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from accelera.interceptor import hooks


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["shim", "stable", "python"])
def each_tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test with every way to catch calls that works here; nothing is armed before and after."""
    monkeypatch.setenv("ACCELERA_INTERCEPTION", request.param)
    if hooks.tier() == "none":
        pytest.skip(f"this way to catch calls was not built here: {hooks.why()}")
    hooks.disarm()
    yield request.param
    hooks.disarm()
