"""Every benchmark runs in its small form, so none can rot."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_small_form_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"benchmarks.bench_{name}")
    arguments = ["--small"]
    if name == "matmul":
        arguments += ["--folder", str(tmp_path)]
    assert module.main(arguments)
