"""The same command gives the same bits, however busy the machine was when its speed was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from accelera import BudgetExceededError, DTypeError, MatrixEngine, ShapeError
from accelera.engine import Progress, RunObserver, calibration
from accelera.errors import StoreChangedError, StoreError, StoreFormatError
from accelera.plan import Plan
from accelera.plan._internal import (
    CostModel,
    GramProblem,
    MatmulProblem,
    Operand,
    PlanLimits,
    plan_gram,
    plan_matmul,
)
from accelera.stores import open_store
from tests.planned import StopAfter

RATES = (1e9, 7e9, 4e10, 1.5e11, 2e11)
F4 = np.dtype("f4")

SHAPES = [(1200, 900, 1500), (600, 6000, 500), (300, 300, 300), (5000, 40, 40), (40, 9000, 3)]


@pytest.fixture
def rate(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the rate that the machine is found to have."""

    def put(flops_per_s: float) -> None:
        monkeypatch.setattr(calibration, "_measured_flops", lambda device: flops_per_s)

    return put


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine("cpu")


def save(folder: Path, **shapes: tuple[int, ...]) -> None:
    for seed, (name, shape) in enumerate(shapes.items()):
        np.save(folder / f"{name}.npy", np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def least(plan: Callable[..., Plan]) -> int:
    with pytest.raises(BudgetExceededError) as refused:
        plan(budget=1)
    return refused.value.needed_bytes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("capacity", [3 << 20, 20 << 20])
def test_no_choice_follows_what_was_measured(
    shape: tuple[int, int, int], objective: Any, capacity: int
) -> None:
    m, k, n = shape
    problem = MatmulProblem(
        *(Operand(*each, F4, F4) for each in (("A", (m, k)), ("B", (k, n)), ("C", (m, n))))
    )
    gram = GramProblem(Operand("A", (m, k), F4, F4), Operand("G", (k, k), F4, F4))
    specs = set()
    for flops in RATES:
        cost = CostModel(flops_per_s=flops, cores=2 if flops < 1e11 else 64)
        product = plan_matmul(problem, PlanLimits(capacity), cost, objective=objective)
        square = plan_gram(gram, PlanLimits(capacity), cost)
        specs.add(json.dumps([dict(product.spec), dict(square.spec)]))
    assert len(specs) == 1


def test_predictions_follow_what_was_measured(
    tmp_path: Path, engine: MatrixEngine, rate: Callable[[float], None]
) -> None:
    save(tmp_path, a=(700, 500), b=(500, 600))
    found = []
    for flops in (1e9, 1e11):
        rate(flops)
        found.append(
            engine.plan(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy", budget="64MiB")
        )
    assert found[0].forecast.seconds > 20 * found[1].forecast.seconds
    assert all(
        other.seconds >= 0.5 * plan.forecast.seconds for plan in found for other in plan.alternatives
    ), "times of what was not chosen are on the same scale"


OPERATIONS: dict[str, Callable[[MatrixEngine, Path, dict[str, Any]], Any]] = {
    "time": lambda engine, at, how: engine.matmul(at / "a.npy", at / "b.npy", **how),
    "bytes": lambda engine, at, how: engine.matmul(at / "a.npy", at / "b.npy", objective="bytes", **how),
    "gram": lambda engine, at, how: engine.gram(at / "a.npy", **how),
    "expression": lambda engine, at, how: engine.evaluate(engine.array(at / "a.npy") * 3 + 1, **how),
    "sum": lambda engine, at, how: engine.sum(at / "a.npy", axis=0, **how),
    "std": lambda engine, at, how: engine.evaluate(engine.array(at / "a.npy").std(), **how),
    "stages": lambda engine, at, how: engine.evaluate(
        engine.array(at / "a.npy") @ (engine.array(at / "b.npy") - engine.array(at / "b.npy").mean()), **how
    ),
    "sparse": lambda engine, at, how: engine.matmul(
        scipy.sparse.random(600, 700, 0.05, "csr", "f4", rng=1), at / "a.npy", **how
    ),
    "transpose": lambda engine, at, how: engine.transpose(at / "a.npy", **how),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_have_the_same_bits_whatever_was_measured(
    name: str, tmp_path: Path, engine: MatrixEngine, rate: Callable[[float], None]
) -> None:
    save(tmp_path, a=(700, 900), b=(900, 500))
    results = set()
    for flops in RATES:
        rate(flops)
        OPERATIONS[name](engine, tmp_path, {"out": tmp_path / "c.npy", "budget": "33MiB"})
        results.add((tmp_path / "c.npy").read_bytes())
    assert len(results) == 1


def test_a_run_resumed_on_a_busier_machine_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path, engine: MatrixEngine, rate: Callable[[float], None]
) -> None:
    save(tmp_path, a=(900, 1200), b=(1200, 800))
    a, b, out = (tmp_path / f"{name}.npy" for name in "abc")
    budget = least(lambda budget: engine.plan(a, b, out=out, budget=budget))
    rate(2e11)
    engine.matmul(a, b, out=tmp_path / "whole.npy", budget=budget)
    with pytest.raises(KeyboardInterrupt):
        engine.matmul(a, b, out=out, budget=budget, observers=[StopAfter(3)])
    rate(1e9)
    engine.matmul(a, b, out=out, budget=budget, resume=True)
    assert engine.last_report.steps_skipped > 0
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()


class TestSavedPlans:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        save(tmp_path, a=(500, 700), b=(700, 400))
        return tmp_path

    def planned(self, engine: MatrixEngine, folder: Path, **options: Any) -> Plan:
        return engine.plan(folder / "a.npy", folder / "b.npy", out=folder / "c.npy", **options)

    def run(self, engine: MatrixEngine, folder: Path, **options: Any) -> bytes:
        options = {"out": folder / "c.npy", **options}
        engine.matmul(folder / "a.npy", folder / "b.npy", **options)
        return (folder / "c.npy").read_bytes()

    def test_a_plan_or_its_file_is_followed_in_any_budget_that_holds_it(
        self, engine: MatrixEngine, folder: Path
    ) -> None:
        small = least(lambda budget: self.planned(engine, folder, budget=budget))
        plan = self.planned(engine, folder, budget=small)
        wanted = self.run(engine, folder, budget=small)
        plan.save(folder / "plan.json")
        for given in (plan, folder / "plan.json", str(folder / "plan.json"), plan.saved()):
            for budget in (None, small, "128MiB"):
                assert self.run(engine, folder, plan=given, budget=budget) == wanted
                assert dict(engine.last_report.plan.spec) == plan.saved().spec
                assert engine.last_report.plan.budget_bytes == (128 << 20 if budget == "128MiB" else small)

    def test_a_plan_that_does_not_fit_is_refused_with_what_would_do(
        self, engine: MatrixEngine, folder: Path
    ) -> None:
        plan = self.planned(engine, folder, budget="128MiB")
        small = least(lambda budget: self.planned(engine, folder, budget=budget))
        with pytest.raises(BudgetExceededError, match="the plan to repeat") as refused:
            self.run(engine, folder, plan=plan, budget=small)
        self.run(engine, folder, plan=plan, budget=refused.value.needed_bytes)
        assert not (folder / "c.npy.journal").exists()

    def test_a_plan_of_other_operands_is_refused(self, engine: MatrixEngine, folder: Path) -> None:
        plan = self.planned(engine, folder, budget="64MiB")
        with pytest.raises(ShapeError, match="plan= was made for"):
            engine.matmul(folder / "b.npy", np.ones((400, 3), "f4"), plan=plan)
        with pytest.raises(DTypeError, match="plan= was made for"):
            engine.matmul(np.ones((500, 700)), np.ones((700, 400)), plan=plan)
        with pytest.raises(ValueError, match="plan= was made for matmul"):
            engine.gram(folder / "a.npy", plan=plan)
        with pytest.raises(TypeError, match="give a Plan"):
            wrong: Any = 7
            engine.matmul(folder / "a.npy", folder / "b.npy", plan=wrong)

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "null", "7", '{"accelera_plan": 1}', '{"accelera_plan": 1, "x": 2}', "\x00"]
    )
    def test_what_is_no_saved_plan_is_refused(self, engine: MatrixEngine, folder: Path, text: str) -> None:
        (folder / "plan.json").write_text(text)
        with pytest.raises(StoreFormatError, match="no saved plan"):
            self.run(engine, folder, plan=folder / "plan.json")

    def test_damaged_choices_are_refused(self, engine: MatrixEngine, folder: Path) -> None:
        self.planned(engine, folder, budget="64MiB").save(folder / "plan.json")
        whole = json.loads((folder / "plan.json").read_text())
        for spec in ({"bands": 3}, {"bands": [[1, 1]]}, {**whole["spec"], "strip": "x"}, {"tile": [1]}):
            (folder / "plan.json").write_text(json.dumps({**whole, "spec": spec}))
            with pytest.raises(StoreFormatError, match="plan again"):
                self.run(engine, folder, plan=folder / "plan.json")
        (folder / "plan.json").write_text(json.dumps({**whole, "accelera_plan": 99}))
        with pytest.raises(StoreFormatError, match="99"):
            self.run(engine, folder, plan=folder / "plan.json")
        with pytest.raises(StoreError, match="cannot be read"):
            self.run(engine, folder, plan=folder / "missing.json")
        with pytest.raises(StoreError, match="cannot be written"):
            self.planned(engine, folder).save(folder / "missing" / "plan.json")

    def test_other_operations_follow_plans_too(self, engine: MatrixEngine, folder: Path) -> None:
        engine.gram(folder / "a.npy", plan=engine.plan_gram(folder / "a.npy", budget="64MiB"))
        x = engine.array(folder / "a.npy")
        plan = engine.plan_evaluate(x * 2, folder / "c.npy", budget="24MiB")
        engine.evaluate(x * 2, folder / "c.npy", plan=plan, budget="64MiB")
        assert engine.last_report.plan.spec == plan.spec


class TestOverwrittenOperands:
    """An operand that changes while it is read makes a result of neither contents: it is not published."""

    @pytest.mark.parametrize("suffix", ["npy", "zarr"])
    @pytest.mark.parametrize("old_times", [False, True])
    @pytest.mark.parametrize("into", ["file", "memory"])
    def test_nothing_is_published(
        self, tmp_path: Path, engine: MatrixEngine, suffix: str, old_times: bool, into: str
    ) -> None:
        if suffix == "zarr":
            pytest.importorskip("zarr")
        save(tmp_path, a=(600, 500), b=(500, 400), c=(3, 3))
        a, out = tmp_path / f"a.{suffix}", tmp_path / "c.npy"
        if suffix == "zarr":
            engine.copy(tmp_path / "a.npy", out=a)
        older = out.read_bytes()

        class Overwrite(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                if progress.done_steps == 1:
                    overwrite(a, old_times=old_times)

        how: dict[str, Any] = {"out": out} if into == "file" else {"budget": "64MiB"}
        with pytest.raises(StoreChangedError, match=r"operand A .* was overwritten"):
            engine.matmul(a, tmp_path / "b.npy", observers=[Overwrite()], **how)
        assert out.read_bytes() == older
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted({"a.npy", a.name, "b.npy", "c.npy"})

    def test_a_memory_map_is_a_file(self, tmp_path: Path, engine: MatrixEngine) -> None:
        save(tmp_path, a=(600, 500))
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")

        class Overwrite(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                mapped[:] = 0
                mapped.flush()

        with pytest.raises(StoreChangedError, match="overwritten"):
            engine.evaluate(engine.array(mapped) * 2, tmp_path / "c.npy", observers=[Overwrite()])

    def test_a_file_that_is_replaced_is_read_to_its_end(self, tmp_path: Path, engine: MatrixEngine) -> None:
        """A new file under the old name changes nothing for who has the old one open."""
        save(tmp_path, a=(600, 500), b=(500, 400), other=(600, 500))
        wanted = np.load(tmp_path / "a.npy").astype("f8") @ np.load(tmp_path / "b.npy")

        class Replace(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                if progress.done_steps == 1:
                    (tmp_path / "other.npy").replace(tmp_path / "a.npy")

        engine.matmul(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy", observers=[Replace()])
        np.testing.assert_allclose(np.load(tmp_path / "c.npy"), wanted, rtol=1e-3, atol=1e-3)


def overwrite(path: Path, *, old_times: bool) -> None:
    """Change a file, or a chunk of an array, in place, beginning and end included."""
    files = [path] if path.is_file() else [each for each in path.glob("c/*/*") if each.is_file()]
    for file in files:
        status = file.stat()
        with open(file, "r+b") as open_file:
            for place, whence in ((-400, os.SEEK_END), (8192, os.SEEK_SET)):
                open_file.seek(place, whence)
                open_file.write(b"\x01" * 400)
        if old_times:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_sample_of_a_view_is_that_of_its_file(tmp_path: Path) -> None:
    save(tmp_path, a=(60, 50))
    store = open_store(tmp_path / "a.npy")
    assert store.sample() == store[::2].T.sample() is not None
    assert open_store(np.ones(3)).sample() is None
