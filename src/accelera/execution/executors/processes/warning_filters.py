"""Warning filters of the caller in a worker, which need not import the modules of their categories."""

from __future__ import annotations

import builtins
import re
import warnings
from typing import Any, Final, NamedTuple, final


@final
class SentFilter(NamedTuple):
    """One filter, whose categories are names."""

    action: str
    message: tuple[str, int] | None
    """Pattern and flags."""
    categories: tuple[tuple[str, str], ...]
    """Module and qualified name of each."""
    module: tuple[str, int] | None
    line: int


_LAST: list[tuple[tuple[Any, ...], list[SentFilter]]] = []
"""The filters of the last call, in the forms of ``warnings`` and of messages."""


def current_filters() -> list[SentFilter]:
    """Return the filters of this process, in order of precedence."""
    filters = tuple(warnings.filters)
    last = next(iter(_LAST), None)
    if last is not None and last[0] == filters:
        return last[1]
    sent = [
        SentFilter(action, _pattern(message), _names(category), _pattern(module), line)
        for action, message, category, module, line in filters
    ]
    _LAST[:] = [(filters, sent)]
    return sent


def set_filters(filters: list[SentFilter]) -> None:
    """Replace the filters; warnings that were shown before may be shown again."""
    warnings.resetwarnings()
    warnings.onceregistry.clear()  # type: ignore[attr-defined]
    warnings.filters[:] = [  # type: ignore[index]
        (
            each.action,
            each.message and re.compile(*each.message),
            _category(each.categories),
            each.module and re.compile(*each.module),
            each.line,
        )
        for each in filters
    ]


def _names(category: type | tuple[type, ...]) -> tuple[tuple[str, str], ...]:
    classes = category if isinstance(category, tuple) else (category,)
    return tuple((each.__module__, each.__qualname__) for each in classes)


def _pattern(pattern: Any) -> tuple[str, int] | None:
    """Return source and flags of a pattern, which ``warnings`` itself may set as text."""
    if pattern is None:
        return None
    return (re.escape(pattern) + r"\Z", 0) if isinstance(pattern, str) else (pattern.pattern, pattern.flags)


class _NamedCategory(type):
    """Type of classes that stand for a category whose module may not have been imported here."""

    def __subclasscheck__(cls, subclass: type) -> bool:
        name = cls.__module__, cls.__qualname__
        return any((each.__module__, each.__qualname__) == name for each in subclass.__mro__)


_CATEGORIES: Final[dict[tuple[str, str], type]] = {}


def _category(names: tuple[tuple[str, str], ...]) -> type | tuple[type, ...]:
    classes = tuple(_class_named(*each) for each in names)
    return classes[0] if len(classes) == 1 else classes


def _class_named(module: str, name: str) -> type:
    if module == "builtins":
        category: type = getattr(builtins, name)
        return category
    if (module, name) not in _CATEGORIES:
        members = {"__module__": module, "__qualname__": name}
        _CATEGORIES[module, name] = _NamedCategory(name, (Warning,), members)
    return _CATEGORIES[module, name]
