"""Amounts of what nodes have, as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any


def check_amounts(op: str, resources: Any, **amounts: Any) -> None:
    """Check ``amounts`` and ``resources``, which are amounts by name, for errors of ``op``.

    Raises
    ------
    TypeError
        When ``resources`` has no names, or for what is no number.
    ValueError
        For a number below 0, or NaN.
    """
    if not isinstance(resources, Mapping):
        raise TypeError(f"[{op}] resources={resources!r}: give amounts by name, such as {{'disk': 1}}")
    given: dict[str, Any] = {**amounts, **resources}
    for name, amount in given.items():
        if not isinstance(amount, (int, float, Real)):
            raise TypeError(f"[{op}] {name}={amount!r}: give a number of them for each node")
        if not float(amount) >= 0:
            raise ValueError(f"[{op}] {name}={amount!r}: give a number from 0")
