"""The page of errors has every class, with the built-in exceptions that it is, and a remedy."""

from __future__ import annotations

import builtins

import pytest

from accelera import errors
from tests.core.environment import ROOT

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.AcceleraError)
}
ROWS = {
    cells[1].strip(" `"): [cell.strip() for cell in cells[2:5]]
    for line in (ROOT / "docs" / "errors.md").read_text().splitlines()
    if line.startswith("| `")
    for cells in [line.split("|")]
}


def test_page_lists_every_class_once() -> None:
    assert ROWS.keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_row_states_bases_cause_and_remedy(name: str) -> None:
    bases, cause, remedy = ROWS[name]
    named = [base.strip(" `") for base in bases.split(",")]
    types = [CLASSES.get(base) or getattr(builtins, base) for base in named]
    assert all(issubclass(CLASSES[name], base) for base in types)
    direct = [base for base in CLASSES[name].__bases__ if base is not errors.AcceleraError]
    assert set(direct) <= set(types)
    assert cause
    assert remedy
