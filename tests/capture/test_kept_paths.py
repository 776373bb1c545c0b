"""Import paths of before: they go on working, and say what to write now."""

from __future__ import annotations

import importlib
import pickle

import pytest

import accelera
from accelera import interceptor
from accelera.capture import capture, live_bytes
from accelera.estimate import estimate, predict_compile


def test_the_former_package_warns_and_gives_the_same() -> None:
    former = importlib.import_module("accelera.capturing")
    with pytest.warns(DeprecationWarning, match=r"now accelera\.capture"):
        assert former.live_bytes is live_bytes
    with pytest.raises(AttributeError, match="nothing"):
        _ = former.nothing


def test_names_of_other_packages_stay_in_the_interceptor() -> None:
    assert interceptor.capture is capture
    assert (interceptor.estimate, interceptor.predict_compile) == (estimate, predict_compile)


def test_the_former_name_of_the_hooks_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"now accelera\.interceptor\.hooks"):
        mechanism = interceptor.mechanism
    assert mechanism.tier() in ("shim", "stable", "python", "none")


@pytest.mark.parametrize("name", ["capture", "estimate"])
def test_packages_that_share_a_name_with_their_function_travel_by_name(name: str) -> None:
    package = getattr(accelera, name)
    assert callable(package)
    assert pickle.loads(pickle.dumps(package)) is package
