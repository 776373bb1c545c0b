"""Results that depend on a trace alone, worked out once for each trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from accelera.trace import Trace

Column = TypeVar("Column", bound="np.ndarray[Any, Any]")


def once_per_trace(function: Callable[[Trace], Column]) -> Callable[[Trace], Column]:
    """Return ``function`` with its results remembered, read-only, as long as their trace lives."""
    found: WeakKeyDictionary[Trace, Column] = WeakKeyDictionary()

    @functools.wraps(function)
    def remembered(trace: Trace) -> Column:
        if trace not in found:
            result = function(trace)
            result.setflags(write=False)
            found[trace] = result
        return found[trace]

    return remembered
