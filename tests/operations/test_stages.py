"""Expressions with products and reductions inside: one plan, NumPy's values, the order that costs least."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera as acc
from accelera.engine import MatrixEngine, RunObserver, lazy
from accelera.engine.stages import best_splits
from accelera.errors import ArgumentError, BudgetExceededError, DTypeError, ShapeError, StoreChangedError
from accelera.stores import open_store
from tests.matmul.products import values

N = 6


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine("cpu", enable_progress=False, budget="64MiB")


LEAVES = [values((N, N), "f8", seed) for seed in range(4)] + [
    values((N, N), "f4", 5).round(1),
    np.eye(N, dtype="i4"),
]

UNARY: dict[str, Any] = {
    "negated": lambda x: -x,
    "scaled": lambda x: x * 0.5 + 1,
    "centred": lambda x: x - x.mean(),
    "centred by column": lambda x: x - x.mean(axis=0),
    "centred by row": lambda x: x - x.mean(axis=1, keepdims=True),
    "standardised": lambda x: (x - x.mean(axis=0)) / (1 + x.std(axis=0)),
    "over its largest": lambda x: x / (1 + abs(x).max()),
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "joined halves": lambda x: np.concatenate([x[3:], x[:3]], axis=0),
    "joined columns": lambda x: np.concatenate([x[:, :2] * 2, x[:, 2:]], axis=1),
    "squared": lambda x: x @ x / 10,
    "gram": lambda x: x.T @ x / 10,
}
BINARY: dict[str, Any] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x @ y / 10,
    "chain": lambda x, y: x @ y @ x / 100,
    "larger": lambda x, y: np.maximum(x, y),
    "row sums": lambda x, y: x * y.sum(axis=1),
}

TREES = st.recursive(
    st.integers(0, len(LEAVES) - 1),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), inner),
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
    ),
    max_leaves=5,
)


def made(tree: Any, leaves: list[Any]) -> Any:
    """Return what a tree describes, of NumPy's arrays or of operands."""
    if isinstance(tree, int):
        return leaves[tree]
    name, *parts = tree
    return {**UNARY, **BINARY}[name](*[made(each, leaves) for each in parts])


@given(TREES)
@settings(max_examples=120, deadline=None)
def test_any_tree_has_numpys_values_and_type(tree: Any) -> None:
    engine = MatrixEngine("cpu", enable_progress=False, budget="64MiB")
    wanted = made(tree, list(LEAVES))
    found = made(tree, [lazy(each) for each in LEAVES])
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    exact = made(tree, [each.astype("f8") for each in LEAVES])
    scale = 1 + np.abs(exact).max()
    rough = 2e-4 if "4" in str(tree) else 1e-10  # the float32 operand
    np.testing.assert_allclose(np.asarray(engine.evaluate(found)) / scale, exact / scale, atol=rough)
    assert engine.last_report.moved_bytes == engine.last_report.plan.moved_bytes


DTYPES = ["i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("a", DTYPES)
def test_types_are_promoted_as_in_numpy(a: str, engine: MatrixEngine) -> None:
    for b in DTYPES:
        x, y = (np.arange(12).reshape(3, 4) % 5).astype(a), (np.arange(8).reshape(4, 2) % 3).astype(b)
        expr = lazy(x) @ lazy(y)
        wanted = x.astype("c16") @ y.astype("c16")
        halves = np.dtype("f2") in (x.dtype, y.dtype)
        assert halves or expr.dtype == (x @ y).dtype
        np.testing.assert_allclose(np.asarray(engine.evaluate(expr)), wanted, rtol=1e-3 if halves else 1e-6)
        direct = engine.matmul(x, y, out=np.empty((3, 2), expr.dtype))
        np.testing.assert_allclose(np.asarray(direct), wanted, rtol=1e-3 if halves else 1e-6)
    with pytest.raises(DTypeError, match="bool"):
        lazy(np.ones((2, 2), bool)) @ np.ones((2, 2), bool)


def all_orders(dims: tuple[int, ...]) -> list[float]:
    """Return the multiplications of every way to multiply a chain."""
    if len(dims) == 2:
        return [0]
    return [
        left + right + dims[0] * dims[split] * dims[-1]
        for split in range(1, len(dims) - 1)
        for left in all_orders(dims[: split + 1])
        for right in all_orders(dims[split:])
    ]


@given(st.lists(st.sampled_from([1, 10, 100, 1000, 10_000]), min_size=3, max_size=7))
@settings(deadline=None, max_examples=60)
def test_a_chain_costs_little_more_than_the_fewest_multiplications(sizes: list[int]) -> None:
    dims = tuple(sizes)
    splits = best_splits(dims, 8)

    def multiplications(start: int, stop: int) -> int:
        if stop - start == 1:
            return 0
        middle = splits[start, stop]
        here = dims[start] * dims[middle] * dims[stop]
        return here + multiplications(start, middle) + multiplications(middle, stop)

    # Traffic counts as well, so the order need not be the one of the fewest; it is never far from it.
    assert multiplications(0, len(dims) - 1) <= 40 * min(all_orders(dims)) + 1e9


def test_chains_avoid_large_results_in_between(engine: MatrixEngine) -> None:
    a, b = values((400, 300), "f8", 1), values((300, 500), "f8", 2)
    v, w = values((500,), "f8", 3), values((400,), "f8", 4)
    x, y = lazy(a), lazy(b)
    plan = engine.plan_evaluate(x @ y @ v)
    assert [stage.operands[-1].shape for stage in plan.stages] == [(300, 1), (400, 1)]
    for expr, wanted in (
        (x @ y @ v, a @ b @ v),
        (lazy(w) @ x @ y, w @ a @ b),
        (w @ x @ y @ v, w @ a @ b @ v),
        (np.linalg.multi_dot([x, y, lazy(v)]), a @ b @ v),
        ((x @ y @ v)[None] @ x, (a @ b @ v)[None] @ a),
        (np.dot(x @ y, v) @ x, (a @ b @ v) @ a),
    ):
        np.testing.assert_allclose(np.asarray(engine.evaluate(expr)), wanted, rtol=1e-9)


def test_equal_parts_are_computed_once(engine: MatrixEngine) -> None:
    a = values((50, 50), "f8", 1)
    x = lazy(a)
    product = x @ x
    plan = engine.plan_evaluate(product + product.sum() + product.T)
    assert [stage.operation for stage in plan.stages] == ["matmul", "evaluate", "evaluate"]
    shared = x @ x
    chain = engine.plan_evaluate(shared @ x @ x + shared)
    assert len(chain.stages) == 4


def test_factors_are_computed_as_they_are_read(engine: MatrixEngine, tmp_path: Path) -> None:
    a = values((70, 60), "f4", 1)
    np.save(tmp_path / "a.npy", a)
    x = engine.array(tmp_path / "a.npy")
    plan = engine.plan_evaluate((x * 2 + 1).T @ x)
    assert plan.stages == ()
    found = np.asarray(engine.evaluate((x * 2 + 1).T @ x))
    np.testing.assert_allclose(found, (a * 2 + 1).T @ a, rtol=1e-4, atol=1e-4)
    assert np.asarray(engine.matmul(x.T * 2, tmp_path / "a.npy")).shape == (60, 60)


@pytest.mark.parametrize(("budget", "tier"), [(0, "disk"), (64 << 20, "ram")])
def test_results_between_stages_fit_the_budget_or_go_to_files(budget: int, tier: str, tmp_path: Path) -> None:
    a = values((1_500, 1_200), "f4", 1)
    np.save(tmp_path / "a.npy", a)
    engine = MatrixEngine("cpu", enable_progress=False)
    x = engine.array(tmp_path / "a.npy")
    expr = ((x @ x.T) * 2 - 1).mean(axis=0)
    least = 0
    try:
        engine.plan_evaluate(expr, budget=1)
    except BudgetExceededError as refused:
        least = refused.needed_bytes
    room = max(least, budget)
    plan = engine.plan_evaluate(expr, budget=room)
    assert plan.stages[0].operands[-1].tier == tier
    assert plan.peak_bytes["ram"] <= room
    found = np.asarray(engine.evaluate(expr, budget=room))
    np.testing.assert_allclose(found, ((a @ a.T) * 2 - 1).mean(axis=0), rtol=1e-3, atol=1e-2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.npy"]
    text = plan.explain()
    assert "2 stages" in text
    assert "stage 2: evaluate" in text
    assert plan.to_dict()["stages"][0]["operation"] == "matmul"


def test_the_smallest_budget_named_does(tmp_path: Path) -> None:
    a = values((900, 800), "f8", 1)
    np.save(tmp_path / "a.npy", a)
    engine = MatrixEngine("cpu", enable_progress=False)
    x = engine.array(tmp_path / "a.npy")
    for expr in (x @ x.T @ x, (x @ x.T).sum(axis=0) + 1, x - x.mean(axis=0)):
        with pytest.raises(BudgetExceededError) as refused:
            engine.evaluate(expr, out=tmp_path / "out.npy", budget=1)
        assert not (tmp_path / "out.npy").exists()
        engine.evaluate(expr, out=tmp_path / "out.npy", budget=refused.value.needed_bytes)
        (tmp_path / "out.npy").unlink()


class StopAt(RunObserver):
    """Raises when a stage has made some tiles."""

    def __init__(self, stage: int) -> None:
        self._stage, self._begun = stage, 0

    def on_start(self, plan: Any) -> None:
        self._begun += 1

    def on_progress(self, progress: Any) -> None:
        if self._begun == self._stage and progress.done_tiles >= 1:
            raise KeyboardInterrupt


def test_an_interrupted_expression_is_finished_by_the_next_run(tmp_path: Path) -> None:
    a = values((3_000, 700), "f8", 1)
    np.save(tmp_path / "a.npy", a)
    engine = MatrixEngine("cpu", enable_progress=False, budget="34MiB")
    x = engine.array(tmp_path / "a.npy")
    out, wanted = tmp_path / "out.npy", (a - a.mean(axis=0)) * 2

    def expr(factor: float) -> Any:
        return (x - x.mean(axis=0)) * factor

    with pytest.raises(KeyboardInterrupt):
        engine.evaluate(expr(2.0), out=out, observers=[StopAt(2)])
    assert (tmp_path / "out.npy.partial").exists()
    with pytest.raises(acc.StoreError, match="another run"):
        engine.evaluate(expr(3.0), out=out, resume=True)
    engine.evaluate(expr(2.0), out=out, resume=True)
    assert engine.last_report.steps_skipped > 0
    np.testing.assert_allclose(np.load(out), wanted, atol=1e-12)
    with pytest.raises(KeyboardInterrupt):
        engine.evaluate(expr(2.0), out=out, observers=[StopAt(2)])
    np.save(tmp_path / "a.npy", a + 1)
    x = engine.array(tmp_path / "a.npy")
    with pytest.raises(StoreChangedError):
        engine.evaluate(expr(2.0), out=out, resume=True)


def test_a_failing_stage_leaves_nothing(engine: MatrixEngine, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values((300, 200), "f8", 1))
    x = engine.array(tmp_path / "a.npy")
    for stage in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            engine.evaluate(x - x.mean(axis=0), out=np.empty((300, 200)), observers=[StopAt(stage)])
    with pytest.raises(acc.StoreError, match="does not exist"):
        engine.evaluate(x @ x.T @ x, out=tmp_path / "absent" / "out.npy", observers=[StopAt(1)])
    assert [each.name for each in tmp_path.iterdir()] == ["a.npy"]


def test_results_of_stages_go_anywhere(engine: MatrixEngine, tmp_path: Path) -> None:
    a = values((40, 30), "f4", 1)
    wanted = a - a.mean(axis=0)
    zarr_options: dict[str, Any] = {"chunks": (7, 11), "codec": "zstd"}
    for name, options in (("o.npy", {}), ("o.zarr", zarr_options), ("o.h5::g/x", {})):
        engine.evaluate(lazy(a) - lazy(a).mean(axis=0), out=tmp_path / name, **options)
        np.testing.assert_allclose(open_store(tmp_path / name).to_numpy(), wanted, atol=1e-6)
    array = np.empty((30, 30), "f4")
    engine.evaluate(lazy(a).T @ lazy(a), out=array)
    np.testing.assert_allclose(array, a.T @ a, atol=1e-4)


def test_concatenate(engine: MatrixEngine, tmp_path: Path) -> None:
    parts = [values((5, 4), "f4", 1), values((3, 4), "f8", 2), np.ones((1, 4), "i4")]
    paths = []
    for number, each in enumerate(parts):
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], each)
    joined, wanted = acc.concatenate(paths), np.concatenate(parts)
    assert (joined.shape, joined.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(np.asarray(engine.evaluate(joined)), wanted)
    np.testing.assert_array_equal(np.asarray(engine.evaluate(joined[::-2].T + 1)), wanted[::-2].T + 1)
    assert engine.plan_evaluate(acc.concatenate(paths)).moved_bytes >= sum(each.nbytes for each in parts)
    columns = acc.concatenate([each.T for each in map(lazy, parts)], axis=-1)
    np.testing.assert_array_equal(np.asarray(engine.evaluate(columns)), wanted.T)
    for wrong in ([], [np.ones((2, 3)), np.ones((2, 4))], [np.ones(2), np.ones((2, 2))], [1.0, 2.0]):
        with pytest.raises(ShapeError):
            acc.concatenate(wrong)
    for axis in (2, None, "x"):
        with pytest.raises(ShapeError):
            acc.concatenate(parts, axis)  # type: ignore[arg-type]


def test_what_expressions_cannot_is_told(engine: MatrixEngine) -> None:
    x = lazy(np.ones((3, 4)))
    with pytest.raises(ShapeError, match="do not fit"):
        x @ x
    with pytest.raises(ShapeError, match="at least one axis"):
        x @ 3.0
    with pytest.raises(ArgumentError, match="element by element"):
        list(x + 1)
    with pytest.raises(ArgumentError, match="recorder"):
        engine.evaluate(x - x.mean(), recorder=acc.trace.TraceLog())
    with pytest.raises(ArgumentError, match="evaluate it first"):
        bool((x @ x.T).sum() > 3)


def test_a_product_of_an_expression_keeps_to_the_objective(engine: MatrixEngine, tmp_path: Path) -> None:
    a = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", "f8", (2000, 2000))
    fetched, saved = (
        engine.plan(lazy(a), a, out=tmp_path / "c.npy", budget="64MiB", objective=objective).forecast
        for objective in ("time", "bytes")
    )
    assert saved.fetched_bytes < fetched.fetched_bytes
    engine.matmul(lazy(a), a, out=tmp_path / "c.npy", budget="64MiB", objective="bytes")
    assert engine.last_report.fetched_bytes < fetched.fetched_bytes


def test_a_product_of_an_expression_takes_no_chunk_strategy(engine: MatrixEngine) -> None:
    x = lazy(np.ones((3, 4)))
    for use in (engine.matmul, engine.plan):
        with pytest.raises(ArgumentError, match=r"chunk_strategy='row' with an expression"):
            use(x, np.ones((4, 2)), "row")


def test_long_expressions_do_not_recurse(engine: MatrixEngine) -> None:
    x = lazy(np.ones((4, 4)))
    expr = functools.reduce(lambda found, _: found + 1, range(3_000), x @ x)
    assert np.asarray(engine.evaluate(expr))[0, 0] == 3_004
    assert math.isclose(engine.evaluate((x - x.mean()).sum()), 0)  # type: ignore[arg-type]
