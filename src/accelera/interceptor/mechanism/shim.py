"""Interception by kernels built for one version of torch: a small call costs nanoseconds more."""

from __future__ import annotations

from pathlib import Path

import torch

from accelera.interceptor.found import SHIM_PREFIX, shim_for
from accelera.interceptor.mechanism.compiled import CompiledTier, load


def fault() -> str | None:
    """Return why no shim can be used here, None when one can."""
    path = shim_path()
    if path.exists():
        return _loading_fault(path)
    others = sorted(each.stem.removeprefix(SHIM_PREFIX) for each in path.parent.glob(f"{SHIM_PREFIX}*"))
    if not others:
        return "no shim was built: torch was not there when Accelera was installed"
    return f"the shim was built for torch {' and '.join(others)}, this is torch {torch.__version__}"


def make() -> CompiledTier:
    """Load the shim of this torch."""
    return CompiledTier("shim", shim_path())


def shim_path() -> Path:
    """Return where the shim for the torch that is loaded must lie: beside the other compiled code."""
    return shim_for(torch.__version__)


def _loading_fault(path: Path) -> str | None:
    try:
        load(path)
    except OSError as error:
        return f"the shim cannot be loaded: {error}"
    return None
