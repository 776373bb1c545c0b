"""Two matrix files, their product, and the command run in this process or in one of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from accelera.cli import app

Array = np.ndarray[Any, Any]


class Case:
    """A folder with ``A.npy`` and ``B.npy`` in it, which is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        random = np.random.default_rng(5)
        self.a: Array = random.standard_normal((512, 384), dtype=np.float32)
        self.b: Array = random.standard_normal((384, 448), dtype=np.float32)
        np.save("A.npy", self.a)
        np.save("B.npy", self.b)
        self.ended: tuple[int, str] = (0, "")

    def tight_budget(self) -> str:
        """The smallest budget, and a little: many tiles, many steps."""
        refused = json.loads(call("plan", "matmul", "A.npy", "B.npy", "--budget", "1MiB", "--json").stdout)
        return str(refused["error"]["needed_bytes"] + 300_000)

    def is_product(self, name: str = "C.npy") -> bool:
        exact = self.a.astype(np.float64) @ self.b.astype(np.float64)
        return bool(np.allclose(np.load(name), exact, rtol=1e-4, atol=1e-4))


def call(*words: str, answers: str | None = None) -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(app, list(words), input=answers)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.chdir(tmp_path)
    return Case(tmp_path)


@pytest.fixture
def run() -> Callable[..., Any]:
    return call
