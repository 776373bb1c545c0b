"""The base of all views: a record that becomes JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

ViewJson = Mapping[str, Any]
"""A view as ``to_dict`` returns it, and as the service replies it."""


class JsonView:
    """A frozen dataclass of numbers, texts, lists, dicts and other such records."""

    def to_dict(self) -> dict[str, Any]:
        """Return the view as JSON-able values: sizes in bytes, times in seconds."""
        found: dict[str, Any] = _plain(self)
        return found


def _plain(value: Any) -> Any:
    """Return ``value`` with records made dicts; lists of numbers, which may be long, stay as they are."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list) and value and is_dataclass(value[0]):
        return [_plain(each) for each in value]
    return value
