"""Dotted names in the documentation resolve after ``import accelera``."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest

import accelera
import accelera.tensora as ts
from tests.core.environment import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SPAN = re.compile(r"`((?:accelera|ts)(?:\.[A-Za-z_]\w*)+)")
NO_ATTRIBUTES = {"accelera.progress", "accelera.execute", "accelera.stream"}
"""Names of a logger and of spans of OpenTelemetry."""
FILES = re.compile(r"\.(?:py|npy|json|svg|html)$")


def names(page: Path) -> list[str]:
    spans = SPAN.findall(page.read_text(encoding="utf-8"))
    return sorted({name for name in spans if name not in NO_ATTRIBUTES and not FILES.search(name)})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_dotted_names_resolve(page: Path) -> None:
    roots = {"accelera": accelera, "ts": ts}
    missing = []
    for name in names(page):
        root, *attributes = name.split(".")
        try:
            reduce(getattr, attributes, roots[root])
        except AttributeError as error:
            missing.append(f"{name}: {error}")
    assert missing == []
