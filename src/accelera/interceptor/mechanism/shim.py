"""Interception by kernels built for one version of torch: a small call costs nanoseconds more."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

import accelera
from accelera.interceptor.mechanism.compiled import CompiledTier, load

PREFIX = "_shim-"


def fault() -> str | None:
    """Return why no shim can be used here, None when one can."""
    path = shim_path()
    if path.exists():
        return _loading_fault(path)
    others = sorted(each.stem.removeprefix(PREFIX) for each in path.parent.glob(f"{PREFIX}*"))
    if not others:
        return "no shim was built: torch was not there when Accelera was installed"
    return f"the shim was built for torch {' and '.join(others)}, this is torch {torch.__version__}"


def make() -> CompiledTier:
    """Load the shim of this torch."""
    return CompiledTier("shim", shim_path())


def shim_path() -> Path:
    """Return where the shim for the torch that is loaded must lie: beside the other compiled code."""
    found = importlib.util.find_spec("accelera._native")
    folder = Path(found.origin if found and found.origin else accelera.__file__).parent
    return folder / f"{PREFIX}{torch.__version__}.so"


def _loading_fault(path: Path) -> str | None:
    try:
        load(path)
    except OSError as error:
        return f"the shim cannot be loaded: {error}"
    return None
