"""Expressions: values and types as NumPy's, every operand read once, whatever the store."""

from __future__ import annotations

import itertools
import math
import operator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from accelera.engine import Expr, Matrix, lazy, where
from accelera.errors import BudgetExceededError, DTypeError, ShapeError, StoreError
from accelera.stores import open_store
from tests.matmul.products import BFLOAT16, PLACES, SUFFIXES, values
from tests.operations.running import CPU, computed, smallest_budget
from tests.planned import evaluate, plan_evaluate

DTYPES = [np.dtype(name) for name in ("?", "i1", "u1", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16")]
BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
    np.maximum,
    np.arctan2,
    np.logical_or,
]
UNARY = [
    operator.neg,
    operator.pos,
    operator.invert,
    abs,
    np.sqrt,
    np.exp,
    np.log,
    np.sin,
    np.cos,
    np.tanh,
    np.conj,
    np.real,
    np.imag,
    np.isnan,
    np.floor,
    np.sign,
]


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    if np.dtype(dtype) == np.bool_:
        return np.random.default_rng(seed).random(shape) < 0.5
    return values(shape, dtype, seed)


def expected(function: Any, *arrays: Any) -> Any:
    """Return what NumPy gives, or the TypeError that says it gives nothing."""
    with np.errstate(all="ignore"):
        try:
            return function(*arrays)
        except TypeError as error:
            return error


def assert_same(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-6 if wanted.dtype.itemsize < 8 else 1e-12)


@pytest.mark.parametrize("function", BINARY, ids=lambda each: each.__name__)
def test_two_operands_of_any_types(function: Any) -> None:
    for left, right in itertools.product(DTYPES, DTYPES):
        a, b = random((3, 4), left, 1), random((4,), right, 2)
        wanted = expected(function, a, b)
        if isinstance(wanted, TypeError):
            with pytest.raises(DTypeError):
                function(lazy(a), lazy(b))
        elif wanted.dtype != np.float16:
            assert_same(computed(function(lazy(a), lazy(b))), wanted)


@pytest.mark.parametrize("function", UNARY, ids=lambda each: each.__name__)
def test_one_operand_of_any_type(function: Any) -> None:
    for dtype in DTYPES:
        a = random((5, 3), dtype)
        wanted = expected(function, a)
        if isinstance(wanted, TypeError):
            with pytest.raises(DTypeError):
                function(lazy(a))
        elif wanted.dtype != np.float16:
            assert_same(computed(function(lazy(a))), np.asarray(wanted))


@given(
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=6),
    orders=st.lists(st.sampled_from("CF"), min_size=3, max_size=3),
)
def test_shapes_broadcast_as_in_numpy(shapes: Any, orders: list[str]) -> None:
    arrays = [
        np.asarray(random(shape, "f8", seed), order=order)  # type: ignore[call-overload]
        for seed, (shape, order) in enumerate(zip(shapes.input_shapes, orders, strict=True))
    ]
    x, y, z = map(lazy, arrays)
    a, b, c = arrays
    assert_same(computed(x * y - z), np.asarray(a * b - c))
    assert_same(computed(where(x > y, z, 1.5)), np.asarray(np.where(a > b, c, 1.5)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("out", [None, *SUFFIXES])
def test_any_store_to_any_store(place: str, out: str | None, tmp_path: Path) -> None:
    for dtype in map(np.dtype, ("f4", "f2", "c8", "i8")):
        a, b = random((37, 53), dtype, 1), random((53,), dtype, 2)
        x, y = (lazy(PLACES[place](tmp_path / f"{i}{dtype}", each)) for i, each in enumerate((a, b)))
        target = None if out is None else tmp_path / f"out{dtype}{SUFFIXES[out]}"
        wide = a.astype("f4") if dtype == "f2" else a
        assert_same(computed(x + y * 2, target), (wide + b * 2).astype(dtype))


@pytest.mark.parametrize("place", ["ram", "safetensors"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(place: str, tmp_path: Path) -> None:
    a, b = random((40, 30), BFLOAT16, 1), random((40, 30), BFLOAT16, 2)
    x, y = (lazy(PLACES[place](tmp_path / str(i), each)) for i, each in enumerate((a, b)))
    wanted = (np.float32(3) * a.astype("f4") + b.astype("f4") * b.astype("f4")).astype(BFLOAT16)
    got = computed(3 * x + y * y)
    assert got.dtype == BFLOAT16
    np.testing.assert_array_equal(got.view("u2"), wanted.view("u2"))


def test_half_types_combine_as_in_torch() -> None:
    kinds = {name: torch.ones(2, dtype=getattr(torch, name)) for name in ("float16", "bfloat16", "float32")}
    kinds |= {name: torch.ones(2, dtype=getattr(torch, name)) for name in ("int32", "complex64", "bool")}
    for (left, a), (right, b) in itertools.product(kinds.items(), kinds.items()):
        if "16" in left + right:
            torch_type = str((a + b).dtype).removeprefix("torch.")
            assert (lazy(a) + lazy(b)).dtype.name == torch_type, (left, right)
    assert (lazy(kinds["float16"]) * 2.5).dtype == np.float16
    assert np.sqrt(lazy(np.ones(2, np.int8))).dtype == np.sqrt(np.ones(2, np.int8)).dtype


def test_numbers_take_the_type_of_what_they_meet() -> None:
    a = random((4,), "f4")
    assert_same(computed(lazy(a) * 2.0 + 1), a * np.float32(2) + np.float32(1))
    assert (lazy(a) * np.float64(2)).dtype == np.float64
    assert (2 / lazy(random((4,), "i4"))).dtype == np.float64
    assert (lazy(a) * 1j).dtype == np.complex64
    assert computed(lazy(np.array([1, 200], np.uint8)) < 300).all()
    with pytest.raises(DTypeError, match=r"300"):
        lazy(np.array([1], np.uint8)) + 300


@pytest.mark.parametrize("exponent", [2, 0.5, 3, -1, 2.5, 0])
def test_powers(exponent: float) -> None:
    a = np.abs(random((3, 5), "f8")) + 0.1
    assert_same(computed(lazy(a) ** exponent), a**exponent)
    assert_same(computed(exponent ** lazy(a)) if exponent > 0 else a, exponent**a if exponent > 0 else a)
    whole = np.arange(1, 5)
    if isinstance(exponent, int) and exponent < 0:
        with pytest.raises(DTypeError):
            lazy(whole) ** exponent
    else:
        assert_same(computed(lazy(whole) ** exponent), whole**exponent)


def test_numpy_s_functions_give_expressions() -> None:
    a, b = random((6, 4), "f8", 1), random((4,), "f8", 2)
    x, y = lazy(a), lazy(b)
    assert isinstance(np.add(a, y), Expr)
    assert_same(computed(np.where(x > 0, np.sqrt(abs(x)), y)), np.where(a > 0, np.sqrt(abs(a)), b))
    assert_same(computed(np.clip(x, -0.5, 0.5)), np.clip(a, -0.5, 0.5))
    assert_same(computed(x.clip(high=0)), np.minimum(a, 0))
    assert_same(computed(a - x * b), a - a * b)
    assert_same(computed(x.apply("hypot", y)), np.hypot(a, b))
    assert_same(computed(x.maximum(y).minimum(1).tanh()), np.tanh(np.minimum(np.maximum(a, b), 1)))
    assert_same(computed((x + 1j * y).conj().imag), (a + 1j * b).conj().imag)
    assert_same(computed(x.astype("i4") // 1), a.astype("i4"))


def test_nan_inf_and_division_by_zero_follow_ieee() -> None:
    a = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0])
    wanted = expected(lambda a: (a / 0.0 + np.log(a)).astype("f4"), a)
    assert_same(computed((lazy(a) / 0.0 + np.log(lazy(a))).astype("f4")), wanted)
    np.testing.assert_array_equal(computed(lazy(a).isnan()), np.isnan(a))


def test_operands_of_every_kind() -> None:
    a = random((3, 2), "f4")
    for same in (a, a.tolist(), torch.from_numpy(a), Matrix(a), open_store(a)):
        np.testing.assert_allclose(computed(lazy(same) + a), a + a, rtol=1e-6)
    assert isinstance(lazy(a) + Matrix(a), Expr)
    assert isinstance(a + lazy(a), Expr)
    assert isinstance(torch.from_numpy(a) + lazy(a), Expr)
    assert_same(computed(lazy(3.0) + 1), np.asarray(4.0))


def test_views_are_read_as_they_lie(tmp_path: Path) -> None:
    a, b = random((30, 40), "f4", 1), random((40, 30), "f4", 2)
    x, y = lazy(PLACES["npy"](tmp_path / "a", a)), lazy(PLACES["npy"](tmp_path / "b", b))
    assert_same(computed(x.T + y, tmp_path / "out.npy"), a.T + b)
    assert_same(computed(x[::-2, 5:] * 2), a[::-2, 5:] * 2)
    assert_same(computed(x[3] - x[:, None, 2][:30, 0][0]), a[3] - a[0, 2])


def test_an_operand_used_often_is_read_once_and_equal_parts_are_computed_once(tmp_path: Path) -> None:
    a = random((50, 60), "f4")
    path = tmp_path / "a.npy"
    np.save(path, a)
    x, again = lazy(path), lazy(path)
    expr = (x * 2 + again * 2) * (x * 2)
    plan = plan_evaluate(expr, device=CPU, budget_bytes=64 << 20)
    assert dict(plan.forecast.bytes_read) == {"A": a.nbytes}
    assert_same(computed(expr), (a * 2 + a * 2) * (a * 2))
    from accelera.engine.program import ElementwiseProgram

    assert ElementwiseProgram(expr).instructions == 3
    assert len(ElementwiseProgram(expr).slot_itemsizes) == 2
    assert len(ElementwiseProgram(x[:50, :50].T + again[:50, :50]).leaves) == 2


def test_long_expressions_need_few_buffers() -> None:
    from accelera.engine.program import ElementwiseProgram

    a = random((10,), "f8")
    expr: Expr = lazy(a)
    for _ in range(3000):
        expr = expr + 1.0
    assert len(ElementwiseProgram(expr).slot_itemsizes) == 1
    assert_same(computed(expr), a + 3000)


@given(data=st.data())
def test_random_programs(data: st.DataObject) -> None:
    arrays = [random((7, 5), "f8", seed) for seed in range(3)]
    pairs: list[tuple[Expr, Any]] = [(lazy(each), each) for each in arrays]
    for _ in range(data.draw(st.integers(1, 12))):
        (x, a), (y, b) = (pairs[data.draw(st.integers(0, len(pairs) - 1))] for _ in range(2))
        pairs.append(
            data.draw(
                st.sampled_from(
                    [
                        (x + y, a + b),
                        (x * y, a * b),
                        (where(x > y, x, 0.0), np.where(a > b, a, 0.0)),
                        (x.astype("f4"), a.astype("f4")),
                        (np.tanh(x), np.tanh(a)),
                    ]
                )
            )
        )
    got = computed(pairs[-1][0])
    assert got.dtype == pairs[-1][1].dtype
    np.testing.assert_allclose(got, pairs[-1][1], rtol=1e-6)


def test_empty_operands(tmp_path: Path) -> None:
    a = np.empty((0, 4), np.float32)
    assert computed(lazy(a) + 1).shape == (0, 4)
    assert computed(lazy(a) + 1, tmp_path / "out.npy").shape == (0, 4)


def test_a_result_given_as_an_array(tmp_path: Path) -> None:
    a = random((20, 30), "f4")
    out = np.empty((30, 20), np.float32).T
    computed(lazy(PLACES["npy"](tmp_path / "a", a)) * 2, out)
    np.testing.assert_array_equal(out, a * 2)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda x: x + np.ones(5), ShapeError),
        (lambda x: x + None, TypeError),
        (lambda x: -(x > 0), DTypeError),
        (lambda x: bool(x), TypeError),
        (lambda x: np.asarray(x), TypeError),
        (lambda x: list(x), TypeError),
        (lambda x: np.linalg.inv(x), TypeError),
        (lambda x: np.add.reduce(x), TypeError),
        (lambda x: np.modf(x), DTypeError),
        (lambda x: x.apply("fft"), DTypeError),
        (lambda x: x.astype("O"), DTypeError),
        (lambda x: (x * 1j).astype("f4"), DTypeError),
        (lambda x: x + "no such file.npy", StoreError),
        (lambda x: np.sum(x, out=np.zeros(())), TypeError),
    ],
)
def test_what_cannot_be_said_is_refused_at_once(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        bad(lazy(np.ones((3, 4), np.float32)))


def test_results_that_do_not_fit_their_place(tmp_path: Path) -> None:
    a = random((4, 4), "f4")
    x = lazy(a)
    for out, error in (
        (np.empty((4, 5), "f4"), ShapeError),
        (np.empty((4, 4), "f8"), DTypeError),
        (a, StoreError),
    ):
        with pytest.raises(error):
            evaluate(x + 1, out, device=CPU)
    np.save(tmp_path / "a.npy", a)
    with pytest.raises(StoreError, match="operand"):
        evaluate(lazy(tmp_path / "a.npy") + 1, tmp_path / "a.npy", device=CPU)


def test_the_smallest_budget_is_exact(tmp_path: Path) -> None:
    x = lazy(PLACES["npy"](tmp_path / "a", random((400, 500), "f4")))
    for expr in (x + 1, x.T + 1, x.sum(axis=0)):
        needed = smallest_budget(evaluate, expr, tmp_path / "out.npy")
        evaluate(expr, tmp_path / "out.npy", device=CPU, budget_bytes=needed)
        with pytest.raises(BudgetExceededError) as refusal:
            evaluate(expr, tmp_path / "out.npy", device=CPU, budget_bytes=needed - 1)
        assert refusal.value.needed_bytes == needed
        assert refusal.value.budget_bytes == needed - 1


def test_float64_becomes_bfloat16_in_one_rounding() -> None:
    ties = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8 - 2**-40, 3.4e38, 1e300, 1e-300, -1e-45])
    exact = [1.0078125, 1.0, 1.0078125, np.float32(3.4e38).astype(BFLOAT16), np.inf, 0.0, -0.0]
    got = computed(lazy(ties).astype(BFLOAT16))
    np.testing.assert_array_equal(got.astype("f8"), np.array(exact, "f8"))
    assert got.dtype == ml_dtypes.bfloat16
