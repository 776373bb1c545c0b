"""One version, said in three places."""

from __future__ import annotations

import re

import accelera
from tests.architecture.repository import ROOT


def first(pattern: str, file: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"no version in {file}"
    return found[1]


def test_changelog_project_and_package_agree() -> None:
    assert first(r'^version = "(.+)"', "pyproject.toml") == accelera.__version__
    assert first(r"^## \[?(\d[^\]\s]*)", "CHANGELOG.md") == accelera.__version__
