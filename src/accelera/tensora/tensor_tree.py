"""Nested lists, tuples and dicts of tensors: flattening into leaves, and rebuilding from a structure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora.core import Tensor


class _TensorLeaf:
    """Placeholder for a tensor in a structure."""

    def __repr__(self) -> str:
        return "tensor"


_LEAF = _TensorLeaf()


def flatten(value: Any, tensors: list[Any]) -> Hashable:
    """Append the tensors of a value to a list, and return all the rest of the value as a hashable key.

    Raises
    ------
    TypeError
        If a value that is no tensor cannot be hashed.

    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return _LEAF
    if isinstance(value, (tuple, list)):
        return type(value), tuple(flatten(each, tensors) for each in value)
    if isinstance(value, dict):
        return dict, tuple((name, flatten(each, tensors)) for name, each in value.items())
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"[jit] a value of type {type(value).__name__} given or returned; use tensors, values that can "
            "be hashed, and lists, tuples and dicts of them"
        ) from None
    return type(value), value


def structure_of(value: Any) -> Any:
    """Return the value with a placeholder instead of each tensor."""
    if isinstance(value, Tensor):
        return _LEAF
    if isinstance(value, dict):
        return {name: structure_of(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return _make_sequence(type(value), [structure_of(each) for each in value])
    return value


def rebuild(structure: Any, tensors: Any) -> Any:
    """Return the structure with its placeholders replaced by tensors, taken in order from an iterator."""
    if structure is _LEAF:
        return next(tensors)
    if isinstance(structure, dict):
        return {name: rebuild(each, tensors) for name, each in structure.items()}
    if isinstance(structure, (tuple, list)):
        return _make_sequence(type(structure), [rebuild(each, tensors) for each in structure])
    return structure


def _make_sequence(kind: type, items: list[Any]) -> Any:
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
