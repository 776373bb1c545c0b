"""Comparison of a saved state with the state of the object that is to load it, value by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelera._json_values import shown
from accelera.errors import ArgumentError
from accelera.tensora.core import Tensor

_LARGEST = 1 << 64


def kind_of(value: Any) -> str:
    """Return the kind of a value; numbers are one kind, and so are lists and tuples."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "integer of more than 64 bits"
    if isinstance(value, (list, tuple)):
        return "list"
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def is_alike(value: Any, other: Any) -> bool:
    """Return whether an option may have both values: of one kind, or unset.

    Lists and tuples must have the same length, and their items the kinds of those of the other one. Values of
    dictionaries are compared by name, and those of numbers that the other one lacks with its first value.
    """
    if value is None or other is None:
        return True
    if kind_of(value) != kind_of(other):
        return False
    if isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(is_alike, value, other))
    if isinstance(other, Mapping) and other:
        return all(_is_alike_item(name, each, other) for name, each in value.items())
    return True


def _is_alike_item(name: Any, value: Any, other: Mapping[Any, Any]) -> bool:
    if name in other:
        return is_alike(value, other[name])
    first, item = next(iter(other.items()))
    # Texts name values of any kind; numbers, such as epochs, count values of one kind.
    return is_alike(name, first) and (isinstance(name, str) or is_alike(value, item))


def matching_state(op: str, state: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``state`` under the names of ``own``; other names are left out.

    Parameters
    ----------
    op
        Name of the operation, for messages.
    state
        A state from elsewhere, such as a file.
    own
        The present state of the object that is to load it.

    Raises
    ------
    ArgumentError
        If a name is missing, or a value is of another kind than the present one.
    """
    if not isinstance(state, Mapping):
        raise ArgumentError(f"[{op}] a {type(state).__name__}; give the mapping that state_dict returned")
    for name, value in own.items():
        if name not in state:
            raise ArgumentError(f"[{op}] the state has no {name!r}; give what state_dict returned")
        if not is_alike(state[name], value):
            raise ArgumentError(
                f"[{op}] {name} is {shown(state[name], repr)}, expected a value such as {shown(value, repr)}"
                "; give what state_dict returned"
            )
    return {name: state[name] for name in own}
