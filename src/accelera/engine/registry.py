"""Registrations between matrices and engines, so that neither has to import the other.

An engine returns matrices, and a matrix multiplies by the default engine. The front door registers the
engine's product here, and ``Matrix`` its contents; both are called through this file, which imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Product = Callable[[Any, Any], Any]

_contents: dict[type, Callable[[Any], Any]] = {}
_products: list[Product] = []


def register_wrapper(kind: type, contents: Callable[[Any], Any]) -> None:
    """Let ``contents`` return the tensor or array that objects of ``kind`` wrap."""
    _contents[kind] = contents


def unwrapped(operand: Any) -> Any:
    """Return the tensor or array of a Matrix, anything else as it is."""
    contents = _contents.get(type(operand))
    return operand if contents is None else contents(operand)


def is_matrix(operand: Any) -> bool:
    """Return whether ``operand`` is a Matrix, whose elements are in memory."""
    return type(operand) in _contents


def register_product(product: Product) -> Product:
    """Compute ``A @ B`` of matrices by ``product`` from now on; return it, for use as a decorator."""
    _products[:] = [product]
    return product


def default_product(a: Any, b: Any) -> Any:
    """Return ``a @ b`` as the registered engine computes it."""
    return _products[-1](a, b)
