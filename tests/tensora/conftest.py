"""Every test of the tensor library runs twice: with results computed at once, and with all deferred."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import accelera.tensora as ts


@pytest.fixture(autouse=True, params=["eager", "deferred"])
def fusion(request: pytest.FixtureRequest) -> Iterator[str]:
    """Elementwise operations on tensors of any size wait, or none do."""
    with ts.fusion(request.param == "deferred", least=1):
        yield request.param
