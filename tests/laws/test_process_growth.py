"""The growth of the process stays within the budget, for every kind of operand and operation."""

from __future__ import annotations

import pytest

from tests.children import answer_of
from tests.laws.process_growth import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_growth_stays_within_the_budget(kind: str) -> None:
    growth = answer_of("-m", "tests.laws.process_growth", kind)
    exceeded = {name: sizes for name, sizes in growth.items() if sizes[1] > sizes[0]}
    assert not exceeded, f"{kind}: (budget, growth) in bytes"
