"""Misses and bytes of every policy are what they were: ``tests/golden/regenerate.py`` writes them anew."""

from __future__ import annotations

import json

import pytest

from tests.golden.regenerate import FILE, Golden, figures


@pytest.fixture(scope="module")
def found() -> Golden:
    return figures()


GOLDEN: Golden = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("title", GOLDEN)
def test_numbers_are_golden(title: str, found: Golden) -> None:
    assert found[title] == GOLDEN[title]


def test_every_policy_has_golden_numbers(found: Golden) -> None:
    assert found.keys() == GOLDEN.keys()
