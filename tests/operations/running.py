"""Operations inside the smallest budget that does, and what must hold of every run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accelera.devices import get_device
from accelera.engine import RunReport
from accelera.errors import BudgetExceededError
from accelera.stores import Store
from tests.matmul.products import assert_as_planned, read_back
from tests.planned import evaluate

Operation = Callable[..., tuple[Store, RunReport]]

CPU = get_device("cpu")


def smallest_budget(operation: Operation, *arguments: Any, **options: Any) -> int:
    """Return the least budget that a refusal names."""
    try:
        operation(*arguments, device=CPU, budget_bytes=1, **options)
    except BudgetExceededError as refusal:
        return refusal.needed_bytes
    raise AssertionError("a budget of one byte was accepted")


def run(operation: Operation, *arguments: Any, extra_bytes: int = 0, **options: Any) -> np.ndarray[Any, Any]:
    """Run inside the smallest budget, check the report against the plan, and return the result."""
    budget = smallest_budget(operation, *arguments, **options) + extra_bytes
    store, report = operation(*arguments, device=CPU, budget_bytes=budget, **options)
    assert_as_planned(report)
    return contents(store, arguments)


def contents(store: Store, arguments: tuple[Any, ...] = ()) -> np.ndarray[Any, Any]:
    """Return a result, read back from its file if it went to one."""
    paths = [each for each in arguments if isinstance(each, Path) and each.name.startswith("out")]
    if paths:
        return read_back(paths[0], store.shape, store.dtype)
    return store.to_numpy()


def computed(expr: Any, out: Any = None, **options: Any) -> np.ndarray[Any, Any]:
    """Return the values of an expression, computed inside the smallest budget."""
    return run(evaluate, expr, out, **options)
