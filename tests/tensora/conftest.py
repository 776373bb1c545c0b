"""Every test of the tensor library runs twice: with results computed at once, and with all of them deferred."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accelera.tensora.core import native

NEVER = 2**63 - 1


@pytest.fixture(autouse=True, params=["eager", "deferred"])
def fusion(request: pytest.FixtureRequest) -> Iterator[str]:
    """Elementwise operations on tensors of any size wait, or none do."""
    before = native.fusion_least()
    native.set_fusion_least(NEVER if request.param == "eager" else 1)
    yield request.param
    native.set_fusion_least(before)
