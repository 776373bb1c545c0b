"""The engine's operations: what goes in, what comes back, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accelera.engine import Matrix, MatrixEngine, RunObserver
from accelera.errors import BudgetExceededError, DTypeError
from accelera.stores import Store, open_store
from accelera.trace import TraceLog
from tests.matmul.products import values


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine("cpu", enable_progress=False, budget="64MiB")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, seed in (("a", 1), ("b", 2)):
        np.save(tmp_path / f"{name}.npy", values((200, 300), "f4", seed))
    return tmp_path / "a.npy", tmp_path / "b.npy"


def test_expressions_over_files(engine: MatrixEngine, files: tuple[Path, Path]) -> None:
    a, b = map(np.load, files)
    x, y = map(engine.array, files)
    found = engine.evaluate(np.maximum(x - y, 0) / 2)
    assert isinstance(found, Matrix)
    np.testing.assert_array_equal(found.numpy(), np.maximum(a - b, 0) / 2)
    assert engine.last_report.moved_bytes == a.nbytes + b.nbytes


def test_results_go_where_they_are_asked_to(
    engine: MatrixEngine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    a = np.load(files[0])
    stored = engine.copy(files[0], out=tmp_path / "c.safetensors", dtype="float64")
    assert isinstance(stored, Store)
    np.testing.assert_array_equal(open_store(tmp_path / "c.safetensors").to_numpy(), a)
    array = np.empty((300, 200), "f4")
    turned = engine.transpose(files[0], out=array)
    assert isinstance(turned, Matrix)
    assert np.shares_memory(turned.numpy(), array)
    np.testing.assert_array_equal(array, a.T)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_arithmetic(name: str, engine: MatrixEngine, files: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = map(np.load, files)
    function: Any = getattr(engine, name)
    wanted = getattr(np, name)(a, b)
    for left, right in ((Matrix(a), Matrix(b)), (files[0], files[1]), (files[0], b), (Matrix(a), files[1])):
        np.testing.assert_allclose(function(left, right).numpy(), wanted, rtol=1e-6)
    function(*files, out=tmp_path / "c.npy")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), wanted, rtol=1e-6)
    assert function(files[0], 2).dtype == torch.float32


KINDS = {"argmin": int, "argmax": int, "any": bool, "all": bool}


@pytest.mark.parametrize(
    "name", ["sum", "mean", "var", "std", "prod", "min", "max", "any", "all", "argmin", "argmax"]
)
def test_reductions(name: str, engine: MatrixEngine, files: tuple[Path, Path]) -> None:
    a = np.load(files[0])
    function: Any = getattr(engine, name)
    for operand in (files[0], a, Matrix(a)):
        whole = function(operand)
        assert isinstance(whole, KINDS.get(name, float))
        assert whole == pytest.approx(getattr(np, name)(a.astype("f8")), rel=1e-6)
        along = function(operand, 0, keepdims=True)
        np.testing.assert_allclose(
            along.numpy(), getattr(np, name)(a.astype("f8"), 0, keepdims=True), rtol=1e-5, atol=1e-37
        )
    assert engine.var(files[0], ddof=1) == pytest.approx(a.astype("f8").var(ddof=1), rel=1e-5)
    assert engine.norm(files[0]) == pytest.approx(np.linalg.norm(a.astype("f8")))


def test_gram(engine: MatrixEngine, files: tuple[Path, Path], tmp_path: Path) -> None:
    a = np.load(files[0]).astype("f8")
    np.testing.assert_allclose(engine.gram(files[0]).numpy(), a.T @ a, rtol=1e-4, atol=1e-3)
    engine.gram(files[0], side="right", out=tmp_path / "g.npy")
    np.testing.assert_allclose(np.load(tmp_path / "g.npy"), a @ a.T, rtol=1e-4, atol=1e-3)


def test_plans_tell_what_will_happen(engine: MatrixEngine, files: tuple[Path, Path], tmp_path: Path) -> None:
    plan = engine.plan_evaluate(engine.array(files[0]).sum(axis=0), tmp_path / "s.npy")
    assert "one pass" in plan.explain()
    assert plan.budget_bytes == 64 << 20
    assert engine.plan_gram(files[0], budget="48MiB").budget_bytes == 48 << 20
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_budgets_observers_and_recorders(engine: MatrixEngine, files: tuple[Path, Path]) -> None:
    log, told = TraceLog(), []

    class Listener(RunObserver):
        def on_finish(self, report: Any) -> None:
            told.append(report)

    engine.sum(files[0], budget="40MiB", observers=[Listener()], recorder=log)
    assert told
    assert len(log) > 0
    with pytest.raises(BudgetExceededError) as refusal:
        engine.sum(files[0], budget=1)
    engine.sum(files[0], budget=refusal.value.needed_bytes)


def test_an_interrupted_operation_resumes(
    engine: MatrixEngine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    class Stop(RunObserver):
        def on_progress(self, progress: Any) -> None:
            if progress.done_tiles > 5:
                raise KeyboardInterrupt

    with pytest.raises(BudgetExceededError) as refusal:
        engine.transpose(files[0], out=tmp_path / "t.npy", budget=1)
    budget = refusal.value.needed_bytes
    with pytest.raises(KeyboardInterrupt):
        engine.transpose(files[0], out=tmp_path / "t.npy", budget=budget, observers=[Stop()])
    engine.transpose(files[0], out=tmp_path / "t.npy", budget=budget, resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), np.load(files[0]).T)


def test_what_lies_in_no_store(engine: MatrixEngine, files: tuple[Path, Path]) -> None:
    with pytest.raises(TypeError, match="evaluate"):
        engine.copy(engine.array(files[0]) + 1)
    with pytest.raises(DTypeError):
        engine.array(object())
