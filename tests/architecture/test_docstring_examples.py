"""Examples in docstrings of the package give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import accelera

ROOT = Path(accelera.__file__).parent


def modules_with_examples() -> list[str]:
    files = (path for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8"))
    return [".".join(("accelera", *path.relative_to(ROOT).with_suffix("").parts)) for path in files]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    examples = [example for found in doctest.DocTestFinder().find(module) for example in found.examples]
    assert examples, "the file has an example, and doctest finds none"
    assert not doctest.testmod(module).failed
