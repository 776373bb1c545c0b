"""Packages that are functions."""

from __future__ import annotations

import pickle

import pytest

import accelera


@pytest.mark.parametrize("name", ["capture", "estimate"])
def test_packages_that_share_a_name_with_their_function_travel_by_name(name: str) -> None:
    package = getattr(accelera, name)
    assert callable(package)
    assert pickle.loads(pickle.dumps(package)) is package
