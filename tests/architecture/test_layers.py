"""Who may import whom: the contracts of pyproject.toml, and what they cannot say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import PACKAGE, ROOT, packages, run_python

grimp = pytest.importorskip("grimp")

TORCH_AT_IMPORT = {"accelera.offload", "accelera.interceptor"}


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


def test_offloading_loads_no_compiler(tmp_path: Path) -> None:
    code = "import sys; from accelera.offload import offload; sys.exit('torch._dynamo' in sys.modules)"
    ran = run_python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, (
        ran.stderr or "offload loads torch._dynamo: seconds for programs that never compile"
    )


@pytest.mark.skipif("accelera.stores" not in packages(), reason="there are no stores yet")
def test_no_file_format_knows_another() -> None:
    graph = grimp.build_graph("accelera")
    formats = {f"accelera.stores.{p.stem}" for p in (PACKAGE / "stores").glob("*.py") if _is_format(p)}
    assert formats
    knots = {m: graph.find_modules_directly_imported_by(m) & formats for m in formats}
    assert not any(knots.values()), knots


def _is_format(path: Path) -> bool:
    """Whether a module opens files: shared bases and helpers do not."""
    return re.search(r"^def open_path\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
