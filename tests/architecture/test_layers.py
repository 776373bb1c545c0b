"""Who may import whom: the contracts of pyproject.toml, and what they cannot say."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import DOCS, PACKAGE, ROOT, packages, run_python

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


def imported_modules(path: Path) -> set[str]:
    """Modules of Accelera that a file imports from, with absolute names."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {node.module for node in imports if node.module and node.module.startswith("accelera.")}


def test_packages_import_each_other_by_their_two_interfaces() -> None:
    """The names for users, or the private module ``_internal``; never a file of another package."""
    deep = []
    for path in PACKAGE.rglob("*.py*"):
        package = path.relative_to(PACKAGE).parts[0]
        for module in imported_modules(path) if path.suffix in (".py", ".pyi") else ():
            _, *inner = module.split(".")
            if len(inner) > 1 and inner[0] not in (package, "tensora") and inner[1:] != ["_internal"]:
                deep.append(f"{path.relative_to(PACKAGE)}: {module}")
    assert deep == []


def test_documentation_imports_public_modules_only() -> None:
    texts = [page.read_text(encoding="utf-8") for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    assert not re.findall(r"(?:from|import) accelera\.(?:\w+\.)*_\w+", "\n".join(texts))


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
