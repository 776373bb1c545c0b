"""How calls will be caught, as far as it can be told without loading torch, which takes seconds."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import accelera
from accelera.settings import cache_folder, current_value

SHIM_PREFIX = "_shim-"


def way_found() -> tuple[str, str] | None:
    """Return the way to intercept and words for it where a shim for the torch that is installed lies here.

    None when torch has to be asked: it is loaded already, there is no such shim, or another way is wished.
    """
    if "torch" in sys.modules or current_value("interception") != "auto":
        return None
    if not shim_for(metadata.version("torch")).exists():
        return None
    return "shim", "compiled kernels, built for exactly this torch"


def shim_for(torch_version: str) -> Path:
    """Return where the shim for a version of torch lies, or would be built by ``accelera build-shim``."""
    name = f"{SHIM_PREFIX}{torch_version}.so"
    installed = compiled_folder() / name
    return installed if installed.exists() else built_folder() / name


def built_folder() -> Path:
    """Return where shims are that were built after the installation, of these sources and no others."""
    digest = hashlib.sha256()
    for source in sorted((shim_sources() / "torch").glob("*")):
        digest.update(source.read_bytes())
    return cache_folder() / "shims" / digest.hexdigest()[:16]


def shim_sources() -> Path:
    """Return the folder of sources that ``torch/shim.cpp`` is in."""
    return compiled_folder() / "csrc"


def compiled_folder() -> Path:
    """Return the folder of the compiled code."""
    native = importlib.util.find_spec("accelera._native")
    return Path(native.origin if native and native.origin else accelera.__file__).parent
