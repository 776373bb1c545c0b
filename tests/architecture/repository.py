"""Where things are in the checkout, for the guards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "accelera"
DOCS = ROOT / "docs"


def packages() -> list[str]:
    """Dotted names of ``accelera`` and its direct subpackages without an underscore."""
    inner = sorted(path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py"))
    return ["accelera", *(f"accelera.{name}" for name in inner)]


def tracked_files() -> Iterator[Path]:
    """Every file git tracks, or would; every file outside git (a source archive)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        return
    for name in listing.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            yield ROOT / name


def documentation() -> str:
    """All of docs/ as one text."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))


def run_python(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with no ``ACCELERA_*`` variable but those given."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERA_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**inherited, "PATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )
