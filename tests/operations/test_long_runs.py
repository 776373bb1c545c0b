"""Runs of very many steps: what they take does not grow with them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.devices import get_device
from accelera.engine import job, lazy
from accelera.engine._internal import journal_path, read_journal
from accelera.plan import Plan
from accelera.plan._internal import (
    CostModel,
    ElementwiseProblem,
    GramProblem,
    MatmulProblem,
    Operand,
    PlanLimits,
    plan_elementwise,
    plan_gram,
    plan_matmul,
)
from tests.children import answer_of
from tests.planned import StopAfter, evaluate

MIB = 1 << 20
F4 = np.dtype("f4")
COST = CostModel()


def measured(operation: str, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = answer_of("-m", "tests.operations.long_run", operation, str(steps))
    return found


@pytest.mark.parametrize("operation", ["product", "total"])
def test_a_run_of_many_steps_takes_what_one_of_few_does(operation: str) -> None:
    few, many = measured(operation, 600), measured(operation, 9000)
    for found in (few, many):
        assert found["as_planned"]
        assert found["peak"] <= found["projected"] <= 40 * MIB
    assert (few["passes"], few["steps"]) == (1, 600)
    assert (many["passes"] >= 15, many["steps"]) == (True, 9000)
    assert many["projected"] - few["projected"] <= MIB
    assert many["peak"] - few["peak"] <= 2 * MIB, "a list of the steps alone has 20 MiB"


def of(**shapes: tuple[int, ...]) -> list[Operand]:
    return [Operand(name, shape, F4, F4) for name, shape in shapes.items()]


HUGE: dict[str, Callable[[int], Plan]] = {
    "tall product": lambda room: plan_matmul(
        MatmulProblem(*of(A=(10**9, 1000), B=(1000, 1000), C=(10**9, 1000))), PlanLimits(room), COST
    ),
    "dot product": lambda room: plan_matmul(
        MatmulProblem(*of(A=(1, 10**12), B=(10**12, 1), C=(1, 1))), PlanLimits(room), COST
    ),
    "gram": lambda room: plan_gram(
        GramProblem(*of(A=(10**10, 1000), G=(1000, 1000))), PlanLimits(room), COST
    ),
    "copy": lambda room: plan_elementwise(
        ElementwiseProblem("copy", (10**9, 1000), *_one(of(A=(10**9, 1000), out=(10**9, 1000)))),
        PlanLimits(room),
        COST,
    ),
}


def _one(operands: list[Operand]) -> tuple[tuple[Operand], Operand]:
    return (operands[0],), operands[1]


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("room", [6 * MIB, 1 << 30, 64 << 30])
def test_planning_lists_no_steps(name: str, room: int) -> None:
    """Neither time nor memory of planning grow with the matrices: some thousands of steps are walked."""
    tracemalloc.start()
    try:
        plan = HUGE[name](room)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes <= 24 * MIB
    assert plan.moved_bytes >= plan.compulsory_bytes
    if room < 1 << 30:
        assert plan.forecast.steps > 1_000_000


def test_the_journal_of_many_blocks_has_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_MOST_NOTES", 10)
    np.save(tmp_path / "a.npy", np.arange(64_000, dtype=np.float32).reshape(640, 100))
    expr, out = lazy(tmp_path / "a.npy") + 1, tmp_path / "out.npy"
    options: dict[str, Any] = {"device": get_device("cpu"), "budget_bytes": 16 * MIB}
    saved = evaluate(expr, **options)[1].plan.saved()
    saved = type(saved)(saved.operation, saved.operands, None, {**saved.spec, "tile": [2, 100]})
    with pytest.raises(KeyboardInterrupt):
        evaluate(expr, out, pinned=saved, observers=[StopAfter(300)], **options)
    lines = journal_path(out).read_bytes().count(b"\n")
    assert lines <= 1 + 10
    stored = sum(stop - start for (start, stop), _ in read_journal(journal_path(out))[1])
    assert stored >= 2 * 290, "a run that is interrupted notes what it has"
    _, report = evaluate(expr, out, pinned=saved, resume=True, **options)
    assert report.steps_skipped >= 290
    np.testing.assert_array_equal(np.load(out), np.load(tmp_path / "a.npy") + 1)
