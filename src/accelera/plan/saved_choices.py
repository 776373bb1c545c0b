"""Checks of the choices in a saved plan, which a file may hold in any form: each number lies in its range."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accelera._json_values import shown
from accelera.errors import StoreFormatError

_LARGEST = 1 << 62
"""Upper end of the range of every number, which fits 64-bit arithmetic."""
_LARGEST_WINDOW = 1 << 16
"""The forecast of a plan keeps a number for each step in flight."""


def whole_choice(spec: Mapping[str, Any], name: str, least: int) -> int:
    """Return the integer called ``name``; raises StoreFormatError unless it is at least ``least``."""
    return whole_value(spec.get(name), name, least)


def whole_value(value: Any, name: str, least: int) -> int:
    """Return ``value`` if it is an integer of at least ``least``, else raise StoreFormatError."""
    if type(value) is not int or not least <= value <= _LARGEST:
        raise _refusal(name, value, f"an integer of at least {least}")
    return value


def window_choice(spec: Mapping[str, Any]) -> int:
    """Return the number of steps in flight; raises StoreFormatError unless it is from 1 to 65,536."""
    window = whole_choice(spec, "window", 1)
    if window > _LARGEST_WINDOW:
        raise _refusal("window", window, f"at most {_LARGEST_WINDOW:,} steps in flight")
    return window


def bool_choice(spec: Mapping[str, Any], name: str) -> bool:
    """Return the truth value called ``name``; raises StoreFormatError for anything else."""
    value = spec.get(name)
    if not isinstance(value, bool):
        raise _refusal(name, value, "true or false")
    return value


def fractions_choice(spec: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    """Return the list called ``name``: empty, or ``count`` numbers from 0 to 1."""
    values = spec.get(name)
    sound = isinstance(values, list) and len(values) in (0, count)
    if not sound or not all(type(each) in (int, float) and 0 <= each <= 1 for each in values or ()):
        raise _refusal(name, values, f"an empty list or {count} numbers from 0 to 1")
    return tuple(values or ())


def require_known_choices(spec: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise StoreFormatError unless ``spec`` has exactly these names."""
    expected = sorted(names)
    if sorted(spec) != expected:
        raise _refusal("spec", sorted(spec), f"{expected}")


def require_exact_cover(boxes: Iterable[Sequence[Sequence[int]]], shape: Sequence[int]) -> None:
    """Raise StoreFormatError unless the boxes cover every element of ``shape`` exactly once.

    The sum of the boxes' indicator functions equals that of the whole if their corners, with signs, do.
    """
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        sound = len(box) == len(shape) and all(
            type(start) is int and type(stop) is int and start < stop for start, stop in box
        )
        if not sound:
            raise _refusal("blocks", box, f"spans of positive length along {len(shape)} axes")
        _add_corners(corners, box, 1)
    _add_corners(corners, [(0, size) for size in shape], -1)
    if any(corners.values()):
        raise StoreFormatError(
            f"[plan] its blocks do not cover the result of shape {tuple(shape)} exactly once; plan again"
        )


def _add_corners(corners: Counter[tuple[int, ...]], box: Sequence[Sequence[int]], sign: int) -> None:
    for ends in itertools.product((0, 1), repeat=len(box)):
        corner = tuple(span[end] for span, end in zip(box, ends, strict=True))
        corners[corner] += sign * (-1) ** sum(ends)


def _refusal(name: str, value: Any, expected: str) -> StoreFormatError:
    return StoreFormatError(f"[plan] {name} is {shown(value, repr)}, expected {expected}; plan again")
