"""The environment with the core dependencies alone, made once for all tests of a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from accelera._distribution import DISTRIBUTION
from tests.core.environment import closure, core_requirements, make_environment

Ran = subprocess.CompletedProcess[str]
RunCore = Callable[..., Ran]


@pytest.fixture(scope="session")
def core_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the core dependencies and this build of Accelera."""
    installed = [*closure(core_requirements()).values(), metadata.distribution(DISTRIBUTION)]
    return make_environment(tmp_path_factory.mktemp("core") / "venv", installed)


@pytest.fixture
def run_core(core_python: Path, tmp_path: Path) -> RunCore:
    """Return what runs ``python WORDS…`` of that environment in an empty folder, with more variables."""

    def run(*words: str, **variables: str) -> Ran:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "ACCELERA_")) or name == "ACCELERA_CACHE"
        }
        return subprocess.run(
            [str(core_python), *words],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=840,
        )

    return run
