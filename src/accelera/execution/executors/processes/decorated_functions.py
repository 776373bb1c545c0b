"""Pickles of cached and dispatching functions of a script, for which ``cloudpickle`` has none."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

Reduced = tuple[Any, ...]
_CACHE_TYPE: Final = type(functools.lru_cache(maxsize=1)(len))
_DISPATCH_ATTRIBUTES: Final = frozenset(("register", "dispatch", "registry", "_clear_cache"))
_NAMES: Final = ("__module__", "__name__", "__qualname__", "__doc__")


def reduce_decorated(value: Any) -> Reduced | None:
    """Return the reduced form of a decorated function or property; None for any other value.

    Functions of ``functools.lru_cache`` and ``functools.singledispatch`` that a worker can import go by their
    names. A cached function arrives with an empty cache.
    """
    kind = type(value)
    if kind is functools.cached_property:
        state = {name: content for name, content in vars(value).items() if name != "lock"}
        return functools.cached_property, (value.func,), state
    if kind is _CACHE_TYPE and not _is_importable(value):
        parameters = value.cache_parameters()
        limits = parameters["maxsize"], parameters["typed"]
        return _cached, (value.__wrapped__, *limits), _attributes(value), None, None, _set_attributes
    if kind is FunctionType and _dispatches(value) and not _is_importable(value):
        implementations = dict(value.registry)
        return (
            _dispatching,
            (value.__wrapped__, implementations),
            _attributes(value),
            None,
            None,
            _set_attributes,
        )
    return None


def _dispatches(function: FunctionType) -> bool:
    attributes = function.__dict__
    return "registry" in attributes and attributes.keys() >= _DISPATCH_ATTRIBUTES


def _is_importable(function: Any) -> bool:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    value: Any = None if module in (None, "__main__") else sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is function


def _attributes(function: Any) -> dict[str, Any]:
    """Return attributes of a wrapper, which are not those of the function inside while it is unpickled."""
    left_out = _DISPATCH_ATTRIBUTES | {"__wrapped__"}
    attributes = {name: value for name, value in vars(function).items() if name not in left_out}
    return attributes | {name: getattr(function, name, None) for name in _NAMES}


def _set_attributes(function: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(function, name, value)


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _dispatching(function: Callable[..., Any], registry: dict[type, Callable[..., Any]]) -> Any:
    dispatching = functools.singledispatch(function)
    for kind, implementation in registry.items():
        dispatching.register(kind, implementation)
    return dispatching
