"""Context variables in pickles: a variable of a module by its name, another one by a key of the process."""

from __future__ import annotations

import contextvars
import importlib
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any, Final

_NUMBERS: Final = itertools.count()
_PLACES: Final[dict[contextvars.ContextVar[Any], tuple[str, str] | None]] = {}
"""Module and name of each variable that was sent; None where no module that can be imported has it."""
_KEYS: Final[dict[contextvars.ContextVar[Any], str]] = {}
"""Keys of variables that no module has."""
_MADE: Final[dict[str, contextvars.ContextVar[Any]]] = {}
"""The variables of such keys: a worker makes each once."""


def reduce_variable(variable: contextvars.ContextVar[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what ``pickle`` needs for a context variable, which it cannot send itself."""
    place = _place_of(variable)
    if place is not None:
        return _variable_of_module, place
    key = _KEYS.setdefault(variable, f"{os.getpid()} {next(_NUMBERS)}")
    _MADE.setdefault(key, variable)
    try:
        default = [contextvars.Context().run(variable.get)]
    except LookupError:
        default = []
    return _variable_of_key, (key, variable.name, *default)


def _place_of(variable: contextvars.ContextVar[Any]) -> tuple[str, str] | None:
    if variable not in _PLACES:
        _PLACES[variable] = next(
            (
                (module_name, name)
                for module_name, module in list(sys.modules.items())
                if module is not sys.modules.get("__main__")  # which has a second name there
                for name, value in list(getattr(module, "__dict__", {}).items())
                if value is variable
            ),
            None,
        )
    return _PLACES[variable]


def _variable_of_module(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _variable_of_key(key: str, name: str, *default: Any) -> contextvars.ContextVar[Any]:
    if key not in _MADE:
        made = contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)
        _MADE[key], _KEYS[made] = made, key
    return _MADE[key]
