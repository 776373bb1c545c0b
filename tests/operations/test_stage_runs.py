"""Runs of several stages keep what runs of one keep: plans that are pinned, resuming, operands that stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from accelera.engine import Expr, MatrixEngine, RunObserver, concatenate, lazy
from accelera.engine.journal import Journal
from accelera.errors import (
    ArgumentError,
    BudgetExceededError,
    ShapeError,
    StoreChangedError,
    StoreError,
    StoreFormatError,
)
from accelera.stores import Store


def centred(x: Expr) -> Expr:
    return x - x.mean(axis=0)


EXPRESSIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "centred": lambda a, b: centred(a),
    "chain": lambda a, b: a @ b @ a,
    "centred product": lambda a, b: centred(a @ b),
    "joined": lambda a, b: concatenate([a, b.T]).T @ concatenate([a, b.T]),
}


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine("cpu", enable_progress=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, (name, shape) in enumerate({"a": (900, 700), "b": (700, 900)}.items()):
        np.save(
            tmp_path / f"{name}.npy", np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        )
    return tmp_path


def made(name: str, folder: Path) -> Expr:
    return EXPRESSIONS[name](lazy(folder / "a.npy"), lazy(folder / "b.npy"))


def least(engine: MatrixEngine, expr: Expr, out: Any = None) -> int:
    with pytest.raises(BudgetExceededError) as refused:
        engine.plan_evaluate(expr, out, budget=1)
    return refused.value.needed_bytes


class Meanwhile(RunObserver):
    """Does something when a stage begins, or has made so many tiles."""

    def __init__(self, what: Callable[[], Any], stage: int, tiles: int = 0) -> None:
        self._what, self._stage, self._tiles, self._begun = what, stage, tiles, 0

    def on_start(self, plan: Any) -> None:
        self._begun += 1
        self._at(0)

    def on_progress(self, progress: Any) -> None:
        self._at(progress.done_tiles)

    def _at(self, tiles: int) -> None:
        if self._begun == self._stage and tiles == self._tiles:
            self._what()


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_saved_plan_gives_the_same_bits_in_any_budget_that_holds_it(
    name: str, engine: MatrixEngine, folder: Path
) -> None:
    expr, out = made(name, folder), folder / "out.npy"
    small = least(engine, expr, out)
    plan = engine.plan_evaluate(expr, out, budget=small)
    plan.save(folder / "plan.json")
    engine.evaluate(expr, out, budget=small)
    wanted = out.read_bytes()
    for given in (plan, folder / "plan.json"):
        for budget in (None, "256MiB"):
            engine.evaluate(made(name, folder), out, plan=given, budget=budget)
            assert out.read_bytes() == wanted
            assert engine.last_report.plan.saved().spec == plan.saved().spec


def test_a_product_of_expressions_follows_what_plan_made(engine: MatrixEngine, folder: Path) -> None:
    a, b = lazy(folder / "a.npy"), folder / "b.npy"
    for left in (a * 2, a - a.mean(axis=0)):
        plan = engine.plan(left, b, out=folder / "c.npy", budget="40MiB")
        engine.matmul(left, b, out=folder / "c.npy", plan=plan)
        assert engine.last_report.plan.saved() == plan.saved()


def test_a_plan_of_something_else_is_refused(engine: MatrixEngine, folder: Path) -> None:
    expr, out = made("centred", folder), folder / "out.npy"
    plan = engine.plan_evaluate(expr, out, budget="64MiB")
    with pytest.raises(ArgumentError, match="plan= was made for evaluate"):
        engine.mean(expr, plan=plan)
    with pytest.raises(ShapeError, match="plan= was made for"):
        engine.evaluate(EXPRESSIONS["centred"](lazy(np.ones((4, 5), "f4")), lazy(1)), plan=plan)
    for other in (made("centred product", folder), made("chain", folder), made("joined", folder)):
        with pytest.raises((ArgumentError, StoreFormatError, ShapeError), match="plan"):
            engine.evaluate(other, out, plan=plan)
    with pytest.raises(StoreFormatError, match="stages"):
        engine.evaluate(expr, out, plan=engine.plan_evaluate(lazy(folder / "a.npy") + 1, budget="64MiB"))
    small = least(engine, expr, out)
    with pytest.raises(BudgetExceededError):
        engine.evaluate(expr, out, plan=engine.plan_evaluate(expr, out, budget="256MiB"), budget=small)
    assert sorted(each.name for each in folder.iterdir()) == ["a.npy", "b.npy"]


@pytest.mark.parametrize("stages", [None, [], [{}, {}], [7, 7], [{"band": 1}, {"extent": [1]}]])
def test_damaged_choices_are_refused(stages: Any, engine: MatrixEngine, folder: Path) -> None:
    expr = made("centred", folder)
    engine.plan_evaluate(expr, budget="64MiB").save(folder / "plan.json")
    whole = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**whole, "spec": {"stages": stages}}))
    with pytest.raises(StoreFormatError, match="plan again"):
        engine.evaluate(expr, plan=folder / "plan.json")


class TestResuming:
    @pytest.fixture
    def out(self, folder: Path) -> Path:
        return folder / "out.npy"

    def interrupt(self, engine: MatrixEngine, expr: Expr, out: Path, budget: Any, **how: Any) -> None:
        last = len(engine.plan_evaluate(expr, out, budget=budget).stages)
        with pytest.raises(KeyboardInterrupt):
            engine.evaluate(expr, out, budget=budget, observers=[Meanwhile(stop, last, 2)], **how)
        assert (out.parent / "out.npy.partial").exists()

    def test_its_plan_is_kept_where_it_fits(self, engine: MatrixEngine, folder: Path, out: Path) -> None:
        expr = made("chain", folder)
        small = least(engine, expr, out)
        engine.evaluate(expr, out, budget=small)
        wanted = out.read_bytes()
        self.interrupt(engine, expr, out, small)
        engine.evaluate(made("chain", folder), out, budget="256MiB", resume=True)
        assert out.read_bytes() == wanted
        assert engine.last_report.steps_skipped > 0
        assert engine.last_report.fallbacks == ()

    def test_a_smaller_budget_plans_anew_and_says_so(
        self, engine: MatrixEngine, folder: Path, out: Path
    ) -> None:
        expr = made("centred", folder)
        self.interrupt(engine, expr, out, least(engine, expr, out) + (1 << 20))
        engine.evaluate(expr, out, budget=least(engine, expr, out), resume=True)
        assert any("planned anew" in each for each in engine.last_report.fallbacks)
        a = np.load(folder / "a.npy")
        np.testing.assert_allclose(np.load(out), a - a.mean(axis=0), atol=1e-5)

    def test_another_plan_is_refused(self, engine: MatrixEngine, folder: Path, out: Path) -> None:
        expr = made("chain", folder)
        small = least(engine, expr, out)
        mine = engine.plan_evaluate(expr, out, budget=small)
        self.interrupt(engine, expr, out, small, plan=mine)
        with pytest.raises(StoreError, match="another plan"):
            engine.evaluate(
                expr, out, plan=engine.plan_evaluate(expr, out, budget="256MiB"), budget="512MiB", resume=True
            )
        engine.evaluate(expr, out, plan=mine, resume=True)
        assert sorted(each.name for each in folder.iterdir()) == ["a.npy", "b.npy", "out.npy"]

    def test_a_published_result_is_done(
        self, engine: MatrixEngine, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kill between the renaming and the end of the journal costs nothing: no stage runs again."""
        expr = made("chain", folder)
        monkeypatch.setattr(Journal, "remove", lambda journal: (journal.close(), stop()))
        with pytest.raises(KeyboardInterrupt):
            engine.evaluate(expr, out, budget="64MiB")
        monkeypatch.undo()
        before = out.stat()
        engine.evaluate(expr, out, budget="64MiB", resume=True, observers=[Meanwhile(stop, 1)])
        assert engine.last_report.steps_run == 0
        assert out.stat() == before
        assert sorted(each.name for each in folder.iterdir()) == ["a.npy", "b.npy", "out.npy"]

    def test_a_changed_operand_is_found_before_any_stage_runs(
        self, engine: MatrixEngine, folder: Path, out: Path
    ) -> None:
        small = least(engine, made("centred", folder), out)
        self.interrupt(engine, made("centred", folder), out, small)
        np.save(folder / "a.npy", np.zeros((900, 700), "f4"))
        with pytest.raises(StoreChangedError, match="operand 1 changed"):
            engine.evaluate(
                made("centred", folder), out, budget=small, resume=True, observers=[Meanwhile(stop, 1)]
            )

    def test_an_array_in_memory_is_told_by_its_contents(self, engine: MatrixEngine, out: Path) -> None:
        array = np.random.default_rng(0).standard_normal((900, 700), dtype=np.float32)
        small = least(engine, centred(lazy(array)), out)
        self.interrupt(engine, centred(lazy(array)), out, small)
        other = array + 1
        with pytest.raises(StoreChangedError):
            engine.evaluate(centred(lazy(other)), out, budget=small, resume=True)
        same = array.copy()
        engine.evaluate(centred(lazy(same)), out, budget=small, resume=True)
        assert engine.last_report.steps_skipped > 0


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("into", ["file", "memory"])
def test_an_operand_overwritten_in_any_stage_is_found(
    stage: int, into: str, engine: MatrixEngine, folder: Path
) -> None:
    """Between two stages, too: the mean of the old contents must not be taken from the new ones."""

    def overwrite() -> None:
        np.load(folder / "a.npy", mmap_mode="r+")[0] = 7

    how: Any = {"out": folder / "out.npy"} if into == "file" else {}
    with pytest.raises(StoreChangedError, match="was overwritten"):
        engine.evaluate(made("centred", folder), observers=[Meanwhile(overwrite, stage)], **how)
    assert sorted(each.name for each in folder.iterdir()) == ["a.npy", "b.npy"]


def test_what_lies_in_memory_is_read_only_by_the_work(
    engine: MatrixEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a result that can be resumed needs to know the contents of arrays in memory."""
    zarr = pytest.importorskip("zarr")

    def refuse(store: Store) -> int:
        raise AssertionError(f"{store} was read for a checksum")

    monkeypatch.setattr(Store, "checksum", refuse)
    array = zarr.create_array(store=zarr.storage.MemoryStore(), shape=(40, 30), chunks=(7, 9), dtype="f4")
    array[:] = np.arange(1200).reshape(40, 30)
    found = np.asarray(engine.evaluate(centred(lazy(array))))
    np.testing.assert_allclose(found, array[:] - array[:].mean(axis=0))
    sparse = scipy.sparse.random(30, 20, 0.2, "csr", "f4")
    np.testing.assert_allclose(
        np.asarray(engine.matmul(array, sparse)), array[:] @ sparse.toarray(), rtol=1e-5
    )


def test_steps_and_record_of_a_plan_of_stages(engine: MatrixEngine, folder: Path) -> None:
    plan = engine.plan_evaluate(made("centred product", folder), budget="40MiB")
    steps = list(plan.steps())
    assert len(steps) == plan.forecast.steps == sum(stage.forecast.steps for stage in plan.stages)
    assert {step.write.operand for step in steps} == {
        index for index, each in enumerate(plan.operands) if each.name.rpartition(".")[2] in ("C", "out")
    }
    trace = plan.trace()
    assert len(trace.ops) == len(steps)
    assert {name.split("[")[0] for name in trace.names} <= {each.name for each in plan.operands}
