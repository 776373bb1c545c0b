"""Tasks that executors are compared on; in a module of their own, so that processes can import them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


def tiny(number: int) -> int:
    """Take a fraction of a microsecond."""
    return number + 1


@functools.cache
def _factor(edge: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((edge, edge))


def product(edge: int) -> float:
    """Multiply two matrices, which frees the interpreter for other threads."""
    factor = _factor(edge)
    return float((factor @ factor)[0, 0])


def counting(steps: int) -> int:
    """Count in pure Python, which holds the interpreter."""
    total = 0
    for number in range(steps):
        total += number & 3
    return total


def doubled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Take an array in and give one of the same size out."""
    return array + array


def images(count: int, edge: int) -> list[np.ndarray[Any, Any]]:
    """Return grey images of ``edge`` squared."""
    dice = np.random.default_rng(0)
    return [dice.random((edge, edge), dtype=np.float32) for _ in range(count)]


def resized(image: np.ndarray[Any, Any], edge: int = 1440) -> np.ndarray[Any, Any]:
    """Return ``image`` with ``edge`` rows and columns, interpolated linearly; other threads run meanwhile."""
    at = np.linspace(0, len(image) - 1.001, edge, dtype=np.float32)
    low = at.astype(np.intp)
    part = at - low.astype(np.float32)
    rows = image[low] * (1 - part)[:, None] + image[low + 1] * part[:, None]
    columns: np.ndarray[Any, Any] = rows[:, low] * (1 - part) + rows[:, low + 1] * part
    return columns
