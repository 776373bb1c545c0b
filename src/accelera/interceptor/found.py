"""How calls will be caught, as far as it can be told without loading torch, which takes seconds."""

from __future__ import annotations

import sys
from importlib import metadata

from accelera.devices.torch_shim import shim_for
from accelera.settings import current_value


def way_found() -> tuple[str, str] | None:
    """Return the way to intercept and words for it where a shim for the torch that is installed lies here.

    None when torch has to be asked: it is loaded already, there is no such shim, or another way is wished.
    """
    if "torch" in sys.modules or current_value("interception") != "auto":
        return None
    if not shim_for(metadata.version("torch")).exists():
        return None
    return "shim", "compiled kernels, built for exactly this torch"
