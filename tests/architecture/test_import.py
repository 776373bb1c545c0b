"""`import accelera` is lazy, quick and complete."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import accelera
from tests.architecture.repository import run_python

LOADS_THE_REST = ("accelera._distribution", "accelera._extras", "accelera._lazily")


def test_loads_only_the_standard_library_and_lazy_loader(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import accelera; "
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(tops - set(sys.stdlib_module_names) - {'accelera', 'lazy_loader'}))"
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


def test_runs_no_other_file_of_its_own(tmp_path: Path) -> None:
    code = "import sys, accelera; print(*(name for name in sys.modules if name.startswith('accelera')))"
    loaded = run_python("-c", code, cwd=tmp_path).stdout.split()
    assert set(loaded) == {"accelera", "accelera.errors", *LOADS_THE_REST}


def test_every_name_resolves() -> None:
    public: list[str] = vars(accelera)["__all__"]
    missing = [name for name in public if not hasattr(accelera, name)]
    assert not missing
    packages = set(dir(accelera)) - set(public)
    assert all(isinstance(getattr(accelera, name), ModuleType) for name in packages)
    assert set(dir(accelera)) >= set(public)


def test_a_package_is_there_without_an_import_of_its_own(tmp_path: Path) -> None:
    ran = run_python(
        "-c", "import accelera; print(accelera.interceptor.should_intercept.__name__)", cwd=tmp_path
    )
    assert ran.stdout == "should_intercept\n", ran.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(accelera, "matmull")
