"""Names of capture and estimate that the interceptor has too, and packages that are functions."""

from __future__ import annotations

import pickle

import pytest

import accelera
from accelera import interceptor
from accelera.capture import capture
from accelera.estimate import estimate, predict_compile


def test_names_of_other_packages_stay_in_the_interceptor() -> None:
    assert interceptor.capture is capture
    assert (interceptor.estimate, interceptor.predict_compile) == (estimate, predict_compile)


@pytest.mark.parametrize("name", ["capture", "estimate"])
def test_packages_that_share_a_name_with_their_function_travel_by_name(name: str) -> None:
    package = getattr(accelera, name)
    assert callable(package)
    assert pickle.loads(pickle.dumps(package)) is package
