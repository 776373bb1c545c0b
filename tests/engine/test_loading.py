"""What an operation loads is there before its budget is read, or is not loaded at all."""

from __future__ import annotations

import os

import pytest

from tests.engine.loading import late_by_operation


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_nothing_large_is_loaded_after_the_budget_was_read() -> None:
    assert {name: late for name, late in late_by_operation().items() if late} == {}
