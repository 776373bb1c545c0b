"""`import accelera` is lazy, quick and complete."""

from __future__ import annotations

from pathlib import Path

import accelera
from tests.architecture.repository import run_python

OWN_TIME_S = 0.1


def test_loads_nothing_but_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import accelera; "
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(tops - set(sys.stdlib_module_names) - {'accelera'}))"
    )
    assert run_python("-c", code, cwd=tmp_path).stdout.split() == []


def test_reads_none_of_its_variables_and_sets_up_no_logging(tmp_path: Path) -> None:
    code = (
        "import importlib, logging, os, typing\n"
        "class Watched(dict):\n"
        "    def __getitem__(self, key): return self.get(key)\n"
        "    def get(self, key, default=None): assert not key.startswith('ACCELERA_'), key; return default\n"
        "os.environ = Watched()\n"
        "import accelera\n"
        "assert not logging.getLogger('accelera').handlers and not logging.getLogger().handlers\n"
    )
    ran = run_python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_takes_little_time_of_its_own(tmp_path: Path) -> None:
    def own_time_s() -> float:
        lines = run_python("-X", "importtime", "-c", "import accelera", cwd=tmp_path).stderr.splitlines()
        rows = (line.removeprefix("import time:").split("|") for line in lines if line.count("|") == 2)
        return sum(int(own) for own, _, name in rows if name.strip().partition(".")[0] == "accelera") / 1e6

    assert min(own_time_s() for _ in range(5)) < OWN_TIME_S


def test_every_name_resolves() -> None:
    missing = [name for name in accelera.__all__ if not hasattr(accelera, name)]
    assert not missing
    assert set(dir(accelera)) == set(accelera.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(accelera, "matmull")
