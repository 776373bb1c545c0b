"""Context variables in pickles: a variable of a module by its name, another one by a key of the process."""

from __future__ import annotations

import contextvars
import importlib
import itertools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeAlias

_NUMBERS: Final = itertools.count()
_Place: TypeAlias = tuple[str, str, str | None]
_PLACES: Final[dict[contextvars.ContextVar[Any], _Place | None]] = {}
"""Module, global name and name inside its value of each variable that was sent; None: in no module."""
_VISITED: Final[dict[str, tuple[int, int]]] = {}
"""Identity and number of globals of each module at its last visit."""
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


def _place_of(variable: contextvars.ContextVar[Any]) -> _Place | None:
    if variable not in _PLACES:
        _visit_modules()
    return _PLACES.setdefault(variable, None)


def _visit_modules() -> None:
    """Enter the variables of modules that are new or have another number of globals than at the last visit.

    A visit of all modules of a large program takes about a second, so each module is visited once.
    """
    main = sys.modules.get("__main__")  # which has a second name there
    values: list[tuple[str, str, Any]] = []
    visited: dict[str, tuple[int, int]] = {}
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})
        mark = id(module), len(names)
        if module is main or module_name == __name__ or _VISITED.get(module_name) == mark:
            continue
        visited[module_name] = mark
        values.extend((module_name, name, value) for name, value in list(names.items()))
    for module_name, name, value in values:
        if type(value) is contextvars.ContextVar:
            _PLACES.setdefault(value, (module_name, name, None))
    for module_name, name, value in values:
        if not issubclass(type(value), ModuleType):
            for inner, member in _members_of(value):
                if type(member) is contextvars.ContextVar:
                    _PLACES.setdefault(member, (module_name, name, inner))
    # Last: another thread must not take a module for visited before its variables are entered.
    _VISITED.update(visited)


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
