"""Type checkers accept the code of the README, of docs/ and of examples/, as in an editor of a user."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.markdown import Block, runnable
from tests.architecture.repository import DOCS, PACKAGE, ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TIMEOUT_S = 600
PYRIGHT_CONFIG = {
    "typeCheckingMode": "standard",
    # A page shows a value that it knows: a gradient after a backward pass, a loss after a loop that has run.
    "reportOptionalMemberAccess": False,
    "reportOptionalOperand": False,
    "reportPossiblyUnboundVariable": False,
}
MYPY_OPTIONS = [
    "--strict",
    # Pages define functions without annotations, reuse names and show values that may be None elsewhere.
    "--allow-untyped-defs",
    "--allow-incomplete-defs",
    "--allow-untyped-calls",
    "--allow-redefinition",
    "--no-warn-return-any",
    "--disable-error-code=assignment",
    "--disable-error-code=misc",
    "--disable-error-code=operator",
    "--disable-error-code=union-attr",
    "--disable-error-code=var-annotated",
]


def joined(blocks: list[Block]) -> str:
    """Return the blocks as one module, whose lines have the numbers of the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.rstrip("\n").split("\n")
    return "\n".join(lines) + "\n"


def modules_of(page: Path) -> list[tuple[str, str]]:
    """Return file names and contents; blocks of the README stand alone, those of a page share names."""
    blocks = [b for b in runnable(page.read_text(encoding="utf-8")) if b.language == "python"]
    stem = "_".join(page.relative_to(ROOT).with_suffix("").parts)
    if page == README:
        return [(f"{stem}_{block.line}.py", joined([block])) for block in blocks]
    return [(f"{stem}.py", joined(blocks))] if blocks else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for each page and example."""
    path = tmp_path_factory.mktemp("code")
    for page in PAGES:
        for name, code in modules_of(page):
            (path / name).write_text(code, encoding="utf-8")
    for example in EXAMPLES:
        (path / f"examples_{example.name}").write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def test_basedpyright_accepts_documentation_and_examples(folder: Path) -> None:
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT_CONFIG))
    ended = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    errors = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1} {each['message']}"
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    assert errors == []


def test_mypy_accepts_documentation_and_examples(folder: Path) -> None:
    files = [path.name for path in sorted(folder.glob("*.py"))]
    configuration = folder / "mypy.ini"
    configuration.write_text(f"[mypy]\nmypy_path = {PACKAGE.parent}\nignore_missing_imports = true\n")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(configuration), *MYPY_OPTIONS, *files],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stdout
