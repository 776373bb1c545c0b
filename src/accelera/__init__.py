"""Matrix work in less memory than it needs: plan first, then run inside a hard budget.

``import accelera`` loads none of its packages: a name is loaded when it is first used. The names are in
``__init__.pyi``, which type checkers read too.
"""

from __future__ import annotations

import importlib
from typing import Any

from accelera._distribution import warn_of_conflict
from accelera._lazily import attach

__version__ = "0.1.0"

_load, _, _names = attach(__name__, __file__)
_CALLABLE = ("capture", "estimate", "offload")
"""Packages that can be called as the function of the same name."""
_PACKAGES = (
    "callbacks",
    "charts",
    "chunking",
    "devices",
    "engine",
    "errors",
    "execution",
    "interceptor",
    "memory",
    "plan",
    "policy",
    "report",
    "service",
    "settings",
    "simulator",
    "stores",
    "tensora",
    "testing",
    "trace",
    "units",
    "views",
)

__all__ = ["__version__", *_CALLABLE, *(name for name in _names if name not in _PACKAGES)]


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}") if name in _CALLABLE else _load(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES})


warn_of_conflict()
