"""A run that ends early leaves no result, and the next one goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.engine import lazy
from accelera.errors import StoreChangedError, StoreError
from accelera.stores import open_store
from tests.matmul.products import values
from tests.operations.running import CPU, smallest_budget
from tests.planned import StopAfter, evaluate, gram, transpose


def cases(folder: Path) -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    a, b = values((500, 400), "f4", 1), values((500, 400), "f4", 2)
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    x, y, out = lazy(folder / "a.npy"), lazy(folder / "b.npy"), folder / "out.npy"
    wide = a.astype("f8")
    return {
        "expression": (evaluate, (x * y + 1, out), a * b + 1),
        "reduction": (evaluate, (x.max(axis=1, keepdims=True), out), a.max(axis=1, keepdims=True)),
        "transpose": (transpose, (folder / "a.npy", None, out), a.T),
        "gram": (gram, (open_store(folder / "a.npy"), out), wide.T @ wide),
    }


@pytest.mark.parametrize("name", ["expression", "reduction", "transpose", "gram"])
def test_an_interrupted_run_is_finished_by_the_next(name: str, tmp_path: Path) -> None:
    operation, arguments, wanted = cases(tmp_path)[name]
    out = tmp_path / "out.npy"
    budget = smallest_budget(operation, *arguments)
    with pytest.raises(KeyboardInterrupt):
        operation(*arguments, device=CPU, budget_bytes=budget, observers=[StopAfter(5)])
    assert not out.exists()
    _, report = operation(*arguments, device=CPU, budget_bytes=budget, resume=True)
    assert report.steps_skipped >= 3
    np.testing.assert_allclose(np.load(out), wanted, rtol=1e-3, atol=1e-3)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.npy", "b.npy", "out.npy"]


def test_another_expression_or_operand_is_not_resumed(tmp_path: Path) -> None:
    _, (expr, out), _ = cases(tmp_path)["expression"]
    budget = smallest_budget(evaluate, expr, out)
    with pytest.raises(KeyboardInterrupt):
        evaluate(expr, out, device=CPU, budget_bytes=budget, observers=[StopAfter(5)])
    x, y = lazy(tmp_path / "a.npy"), lazy(tmp_path / "b.npy")
    with pytest.raises(StoreError, match="task"):
        evaluate(x * y + 2, out, device=CPU, budget_bytes=budget, resume=True)
    np.save(tmp_path / "a.npy", values((500, 400), "f4", 3))
    with pytest.raises(StoreChangedError, match="operand A"):
        evaluate(lazy(tmp_path / "a.npy") * y + 1, out, device=CPU, budget_bytes=budget, resume=True)


def test_a_failing_run_leaves_nothing(tmp_path: Path) -> None:
    _, (expr, out), _ = cases(tmp_path)["expression"]
    with pytest.raises(KeyboardInterrupt):
        evaluate(expr, out, device=CPU, observers=[StopAfter(0)])
    left = {each.name for each in tmp_path.iterdir()}
    assert left <= {"a.npy", "b.npy", "out.npy.partial", "out.npy.journal"}
    assert not out.exists()
