"""Library of ours that is compiled for one version of torch: found beside our other compiled code."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from accelera import _native

SHIM_PREFIX = "_shim-"


def shim_path(torch_version: str | None = None) -> Path:
    """Return where the library for a version of torch lies, None meaning the torch that is loaded."""
    version = torch.__version__ if torch_version is None else torch_version
    return Path(_native.__file__).parent / f"{SHIM_PREFIX}{version}.so"


@cache
def shim_library() -> ctypes.CDLL | None:
    """Return the library for the torch that is loaded, or None when there is none that can be loaded."""
    try:
        return ctypes.CDLL(str(shim_path()))
    except OSError:
        return None
