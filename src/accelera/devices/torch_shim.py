"""Library of ours that is compiled for one version of torch: found beside our other compiled code."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import accelera
from accelera.settings import cache_folder

SHIM_PREFIX = "_shim-"


@cache
def shim_library() -> ctypes.CDLL | None:
    """Return the library for the torch that is loaded, or None when there is none that can be loaded."""
    import torch

    try:
        return ctypes.CDLL(str(shim_for(torch.__version__)))
    except OSError:
        return None


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
