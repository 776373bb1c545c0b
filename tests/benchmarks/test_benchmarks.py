"""Every benchmark runs in its small form, so none can rot."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from tests.chromium import needed_chromium

WITH_FILES = ("cluster", "matmul", "offload", "tile_io")
"""Those that make files in the current folder unless they are told another."""


@pytest.mark.parametrize("name", NAMES)
def test_small_form_runs(name: str, tmp_path: Path) -> None:
    if name == "pages":
        needed_chromium()
    module = importlib.import_module(f"benchmarks.bench_{name}")
    arguments = ["--small"]
    if name in WITH_FILES:
        arguments += ["--folder", str(tmp_path)]
    assert module.main(arguments)
