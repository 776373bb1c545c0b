"""Values of untrusted origin: JSON text, checks of numbers, and their form in messages."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Callable
from typing import Any, TypeGuard

from accelera.errors import ArgumentError

MOST_SHOWN = 60
"""Characters of a bad value that a message shows."""
_CONTAINERS = reprlib.Repr()
_CONTAINERS.maxlevel = 3
_CONTAINERS.maxstring = _CONTAINERS.maxlong = MOST_SHOWN


def parse_json(text: str | bytes) -> Any:
    """Return the value that JSON text describes.

    Parameters
    ----------
    text
        The text, or its bytes in UTF-8.

    Raises
    ------
    ArgumentError
        For text that is not JSON. ``json.loads`` raises ValueError for the syntax, for the encoding and for a
        number of thousands of digits, but RecursionError for nesting, which callers overlook.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ArgumentError(
            "[json] lists or objects are nested too deep; write a document with fewer levels"
        ) from error
    except ValueError as error:
        raise ArgumentError(f"[json] no JSON text: {error}; write the document again") from error


def is_finite_number(value: Any) -> TypeGuard[int | float]:
    """Return whether ``value`` is an integer or float, not a boolean, that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def shown(value: Any, write: Callable[[Any], str] = str) -> str:
    """Return a bad value as a message shows it, cut where it is long; ``write=repr`` puts texts in quotes."""
    try:
        # A few bytes of a file can describe a container that is written out in gigabytes.
        text = _CONTAINERS.repr(value) if isinstance(value, (list, tuple, dict, set)) else write(value)
    except ValueError:  # Python does not write out a number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… ({len(text)} characters)"
