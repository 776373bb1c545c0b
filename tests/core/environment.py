"""A virtual environment with the core dependencies alone, made of links to what is installed here.

No network, no copies: a tenth of a second. ``pyproject.toml`` says what the core is; what these packages
require follows from their own metadata.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def pyproject() -> dict[str, Any]:
    """Return ``pyproject.toml``."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def core_requirements() -> list[str]:
    """Return what ``pip install accelera-engine`` installs besides, as it is written."""
    return list(pyproject()["project"]["dependencies"])


def optional_requirements() -> dict[str, list[str]]:
    """Return what each extra installs, as it is written."""
    return dict(pyproject()["project"]["optional-dependencies"])


def closure(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that requirements need, directly or not, by name."""
    found: dict[str, metadata.Distribution] = {}
    left = [Requirement(each) for each in requirements]
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.distribution(name)
        left += map(Requirement, found[name].requires or ())
    return found


def top_entries(distribution: metadata.Distribution) -> Iterator[Path]:
    """Yield what a distribution put directly into its folder of packages: modules, libraries, metadata."""
    base = Path(str(distribution.locate_file("")))
    tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    yield from (base / top for top in sorted(tops))


def make_environment(folder: Path, distributions: Iterable[metadata.Distribution]) -> Path:
    """Make an environment with these distributions and nothing else; return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions:
        for entry in top_entries(distribution):
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
