"""What an offloaded tensor does, by name; the files that say how build on the tensor and are loaded by it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_WAYS: dict[str, Any] = {}


def way(name: str) -> Callable[..., Any]:
    """Return the function that carries out ``name``."""
    if not _WAYS:
        importlib.import_module("accelera.offload.operating.wiring")
    found: Callable[..., Any] = _WAYS[name]
    return found


def wire(**ways: Any) -> None:
    """Say how each is carried out."""
    _WAYS.update(ways)
