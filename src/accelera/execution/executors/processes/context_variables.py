"""Context variables in pickles: a variable of a module by its name, another one by a key of the process."""

from __future__ import annotations

import contextvars
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

_NUMBERS: Final = itertools.count()
_PLACES: Final[dict[contextvars.ContextVar[Any], tuple[str, str, str | None] | None]] = {}
"""Module, global name and name inside its value of each variable that was sent; None: in no module."""
_KEYS: Final[dict[contextvars.ContextVar[Any], str]] = {}
"""Keys of variables that no module has."""
_VARIABLES: Final[dict[str, contextvars.ContextVar[Any]]] = {}
"""The variables of such keys: a worker makes each once."""


def reduce_variable(variable: contextvars.ContextVar[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the reduced form of a context variable, for which ``pickle`` has none."""
    place = _place_of(variable)
    if place is not None:
        return _variable_of_module, place
    key = _KEYS.setdefault(variable, f"{os.getpid()} {next(_NUMBERS)}")
    _VARIABLES.setdefault(key, variable)
    try:
        default = [contextvars.Context().run(variable.get)]
    except LookupError:
        default = []
    return _variable_of_key, (key, variable.name, *default)


def _place_of(variable: contextvars.ContextVar[Any]) -> tuple[str, str, str | None] | None:
    if variable not in _PLACES:
        _PLACES[variable] = next(_places_of(variable), None)
    return _PLACES[variable]


def _places_of(variable: contextvars.ContextVar[Any]) -> Iterator[tuple[str, str, str | None]]:
    """Yield where modules have a variable: as a global, or in a class, object or dictionary that is one."""
    main = sys.modules.get("__main__")  # which has a second name there
    named = [
        (module_name, name, value)
        for module_name, module in list(sys.modules.items())
        if module is not main and module_name != __name__
        for name, value in list(getattr(module, "__dict__", {}).items())
    ]
    yield from ((module, name, None) for module, name, value in named if value is variable)
    for module, name, value in named:
        if not issubclass(type(value), ModuleType):
            yield from ((module, name, inner) for inner, held in _members_of(value) if held is variable)


def _members_of(value: Any) -> list[tuple[str, Any]]:
    """Return the items of a dictionary or the attributes of a class or object, whose code is not called."""
    try:
        members = value if type(value) is dict else object.__getattribute__(value, "__dict__")
        return [(name, each) for name, each in list(members.items()) if type(name) is str]
    except (AttributeError, TypeError):
        return []


def _variable_of_module(module: str, name: str, inner: str | None) -> Any:
    value = getattr(importlib.import_module(module), name)
    if inner is None:
        return value
    return value[inner] if isinstance(value, dict) else getattr(value, inner)


def _variable_of_key(key: str, name: str, *default: Any) -> contextvars.ContextVar[Any]:
    if key not in _VARIABLES:
        new = contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)
        # The same key on the way back, so that an output refers to the variable of the caller.
        _VARIABLES[key], _KEYS[new] = new, key
    return _VARIABLES[key]
