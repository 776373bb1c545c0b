"""Who may import whom: the contracts of pyproject.toml, and what they cannot say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, packages, run_python

grimp = pytest.importorskip("grimp")

TORCH_AT_IMPORT = {"accelera.offload", "accelera.interceptor", "accelera.testing"}


def test_import_linter_contracts() -> None:
    beside = Path(sys.executable).parent / "lint-imports"
    command = str(beside) if beside.exists() else shutil.which("lint-imports")
    assert command, "import-linter is part of the dev extra"
    report = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert report.returncode == 0, report.stdout


@pytest.mark.parametrize("package", sorted(set(packages()) - TORCH_AT_IMPORT))
def test_importing_a_package_loads_no_torch(package: str, tmp_path: Path) -> None:
    code = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    ran = run_python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr or f"import {package} loads torch"


@pytest.mark.skipif("accelera.stores" not in packages(), reason="there are no stores yet")
def test_no_store_knows_another_store() -> None:
    graph = grimp.build_graph("accelera")
    stores = {m for m in graph.find_children("accelera.stores") if _defines_store(m)}
    knots = [(m, o) for m in stores for o in graph.find_modules_directly_imported_by(m) if o in stores]
    assert not knots


def _defines_store(module: str) -> bool:
    """Whether a module holds a concrete store: shared bases and helpers are not."""
    import importlib
    import inspect

    from accelera.stores.contract import Store

    classes = vars(importlib.import_module(module)).values()
    return any(
        inspect.isclass(c) and issubclass(c, Store) and c.__module__ == module and not inspect.isabstract(c)
        for c in classes
    )
