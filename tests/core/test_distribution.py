"""Name of the distribution: one constant, used by every command that installs it; conflicts."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pytest

import accelera
from accelera import _inventory as inventory
from accelera._distribution import DISTRIBUTION, conflict, install_command, warn_of_conflict
from accelera._extras import EXTRAS
from tests.core.environment import ROOT, pyproject

TEXTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "tests").rglob("*.py"),
    *(ROOT / "benchmarks").glob("*"),
    *(ROOT / "examples").glob("*"),
    ROOT / "Dockerfile",
    ROOT / "pyproject.toml",
]
_EXTRA = "|".join(EXTRAS)
INSTALLED = re.compile(
    r"pip install (?:-[\w-]+ )*['\"]?(accelera[\w-]*)|['\"`](accelera[\w-]*)\[(?:" + _EXTRA + r")\b"
)


def test_project_has_the_name_of_the_constant() -> None:
    assert pyproject()["project"]["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION) == accelera.__version__


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_install_the_distribution(path: Path) -> None:
    if path.suffix not in (".md", ".py", ".toml", "") or not path.is_file():
        return
    names = {name for match in INSTALLED.findall(path.read_text()) for name in match if name}
    assert names <= {DISTRIBUTION}


def test_install_command_quotes_extras() -> None:
    assert install_command() == f"pip install {DISTRIBUTION}"
    assert install_command("torch") == f"pip install '{DISTRIBUTION}[torch]'"


def test_own_metadata_is_no_conflict(tmp_path: Path) -> None:
    for name in ("accelera_engine-0.1.0.dist-info", "accelerate-1.0.dist-info", "accelera-notes"):
        (tmp_path / name).mkdir()
    assert conflict([str(tmp_path), str(tmp_path / "absent")]) is None


def test_unrelated_distribution_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelera-2.3.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    message = conflict()
    assert message is not None
    assert f"pip uninstall -y accelera {DISTRIBUTION}" in message
    with pytest.warns(RuntimeWarning, match=r"accelera-2\.3 in .* is another project"):
        warn_of_conflict()
    assert inventory.facts()["conflict"] == message


def test_import_warns_of_the_unrelated_distribution(tmp_path: Path) -> None:
    (tmp_path / "accelera-2.3.dist-info").mkdir()
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import accelera"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "RuntimeWarning: the distribution accelera-2.3" in done.stderr


def test_import_alone_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_conflict()
