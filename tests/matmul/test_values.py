"""What a planned product computes: shapes as torch.matmul's, values as NumPy's in the widest type."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.errors import DTypeError, ShapeError
from accelera.stores import open_store
from tests.matmul.products import (
    BFLOAT16,
    FLOATS,
    HALVES,
    INTEGERS,
    PLACES,
    ROOMY,
    SUFFIXES,
    assert_as_planned,
    assert_close,
    can_hold,
    cpu,
    read_back,
    run,
    values,
)
from tests.planned import matmul

SHAPES = [
    ((7, 5), (5, 3)),
    ((1, 1), (1, 1)),
    ((1, 9), (9, 1)),
    ((9, 1), (1, 9)),
    ((3,), (3,)),
    ((4, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 4, 3), (3,)),
    ((3,), (2, 3, 4)),
    ((2, 4, 3), (3, 5)),
    ((4, 3), (2, 3, 5)),
    ((2, 4, 3), (2, 3, 5)),
    ((2, 1, 4, 3), (5, 3, 2)),
    ((3, 1, 4, 5), (1, 2, 5, 1)),
    ((1, 1, 2, 3), (4, 3, 3, 2)),
]
EMPTY = [
    ((0, 3), (3, 4)),
    ((2, 3), (3, 0)),
    ((0, 0), (0, 0)),
    ((2, 0), (0, 4)),
    ((0,), (0,)),
    ((4, 0), (0,)),
    ((0,), (0, 4)),
    ((0, 2, 3), (3, 4)),
    ((3, 2, 0), (0, 4)),
    ((2, 0, 4, 5), (5, 2)),
    ((0, 2, 0), (0, 0, 4)),
    ((3, 1, 2, 0), (2, 0, 2)),
]


def torch_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.matmul(torch.zeros(a), torch.zeros(b)).shape)


@pytest.mark.parametrize("place", ["ram", "npy", "zarr"])
@pytest.mark.parametrize(("shape_a", "shape_b"), [*SHAPES, *EMPTY])
def test_shapes_are_torchs(
    tmp_path: Path, place: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...]
) -> None:
    a, b = values(shape_a, "f4"), values(shape_b, "f4", 1)
    out = tmp_path / f"c{SUFFIXES[place]}" if place in SUFFIXES else None
    result, report = run(PLACES[place](tmp_path / "a", a), PLACES[place](tmp_path / "b", b), out)
    shape = torch_shape(shape_a, shape_b)
    assert result.shape == shape
    got = result.to_numpy() if out is None else read_back(out, shape, a.dtype)
    assert_close(got, a, b)
    assert_as_planned(report)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize(("shape_a", "shape_b"), [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 0), (0,))])
def test_sums_of_nothing_are_zero_in_every_type(
    dtype: np.dtype[Any], shape_a: tuple[int, ...], shape_b: tuple[int, ...]
) -> None:
    """Also where the result is the caller's memory and holds something else."""
    shape = torch_shape(shape_a, shape_b)
    out = np.ones(shape, dtype)
    run(open_store(values(shape_a, dtype)), open_store(values(shape_b, dtype)), out)
    np.testing.assert_array_equal(out, np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("place", "dtype"),
    [(place, dtype) for place in PLACES for dtype in (*FLOATS, *INTEGERS) if can_hold(place, dtype)],
    ids=str,
)
def test_every_type_in_every_place(tmp_path: Path, place: str, dtype: np.dtype[Any]) -> None:
    a, b = values((37, 29), dtype), values((29, 41), dtype, 1)
    suffix = SUFFIXES.get(place.split("-")[0])
    out = tmp_path / f"c{suffix}" if suffix else None
    result, report = run(PLACES[place](tmp_path / "a", a), PLACES[place](tmp_path / "b", b), out)
    got = result.to_numpy() if out is None else read_back(out, (37, 41), dtype)
    assert_close(got, a, b)
    assert_as_planned(report)


@pytest.mark.parametrize(("place_a", "place_b"), list(itertools.product(PLACES, PLACES)))
def test_operands_from_any_two_places(tmp_path: Path, place_a: str, place_b: str) -> None:
    """Many tiles, and each kind of result in turn."""
    a, b = values((300, 40), "f4"), values((40, 290), "f4", 1)
    targets = [None, np.empty((300, 290), "f4"), *(tmp_path / f"c{suffix}" for suffix in SUFFIXES.values())]
    out = targets[(list(PLACES).index(place_a) * 5 + list(PLACES).index(place_b)) % len(targets)]
    result, report = run(PLACES[place_a](tmp_path / "a", a), PLACES[place_b](tmp_path / "b", b), out)
    got = read_back(out, (300, 290), a.dtype) if isinstance(out, Path) else result.to_numpy()
    assert_close(got, a, b)
    assert_as_planned(report)


VIEWS = {
    "transposed": lambda x: x.T,
    "backwards": lambda x: x[::-1, ::-1],
    "every other row": lambda x: x[::2],
    "every third column": lambda x: x[:, ::3],
    "strided both ways, backwards": lambda x: x[-3::-2, 1::3],
    "a window": lambda x: x[5:77, 3:70],
    "transposed window": lambda x: x[5:77, 3:70].T,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("place", ["ram", "npy", "npy-f", "raw", "safetensors", "zarr"])
def test_views_are_read_as_they_lie(tmp_path: Path, place: str, view: str) -> None:
    """The element types take turns."""
    turn = len(place) + list(VIEWS).index(view)
    dtype = ["f4", "f2", "c8", "i8", "f8"][turn % 5]
    look: Any = VIEWS[view]
    whole_a, whole_b = values((90, 81), dtype), values((90, 81), dtype, 1)
    a, b = look(whole_a), look(whole_b).T
    store_a = look(PLACES[place](tmp_path / "a", whole_a))
    store_b = look(PLACES[place](tmp_path / "b", whole_b)).T
    result, report = run(store_a, store_b)
    assert_close(result.to_numpy(), a, b)
    assert_as_planned(report)


def test_a_strided_result_is_filled_and_nothing_beside_it() -> None:
    a, b = values((30, 20), "f8"), values((20, 25), "f8", 1)
    for key in (np.s_[::2, ::3], np.s_[59::-2, 74::-3]):
        around = np.full((60, 75), 7.0)
        run(open_store(a), open_store(b), around[key])
        assert_close(np.ascontiguousarray(around[key]), a, b)
        around[key] = 7.0
        assert (around == 7.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16])
def test_tensors_are_operands_and_results(dtype: torch.dtype) -> None:
    shape_a, shape_b = (2, 30, 20), (20, 25)
    a = (
        torch.from_numpy(values(shape_a, "i2")).to(dtype) % 7
        if dtype == torch.int16
        else torch.randn(shape_a)
    )
    b = torch.ones(shape_b) if dtype == torch.int16 else torch.randn(shape_b)
    a, b, out = a.to(dtype), b.to(dtype), torch.empty((2, 30, 25), dtype=dtype)
    run(open_store(a), open_store(b.T.contiguous().T), out)
    torch.testing.assert_close(out, torch.matmul(a, b))


@pytest.mark.parametrize("place", ["ram", "npy"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_error_is_no_worse_than_in_core(tmp_path: Path, place: str, dtype: np.dtype[Any]) -> None:
    """Against the widest type, over many chunks of k, on the same data as torch's and NumPy's products.

    torch may be built on another BLAS, whose sums are up to 1.6 times as good in single precision.
    """
    a, b = values((48, 2000), dtype), values((2000, 290), dtype, 1)
    wide = np.clongdouble if dtype.kind == "c" else np.longdouble
    some = slice(None, None, 5)
    exact = np.matmul(a.astype(wide), b[:, some].astype(wide))

    def error(got: np.ndarray[Any, Any]) -> float:
        return float(np.linalg.norm((got[:, some].astype(wide) - exact).astype("c16")))

    result, report = run(PLACES[place](tmp_path / "a", a), PLACES[place](tmp_path / "b", b))
    assert result.to_numpy().dtype == dtype
    assert 0 < error(result.to_numpy()) <= 2 * error(_torch_matmul(a, b))
    if dtype not in HALVES:
        assert error(result.to_numpy()) <= 1.1 * error(a @ b)
    if place == "npy":
        assert report.steps_run > 20


def _torch_matmul(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if a.dtype == BFLOAT16:
        tensors = [torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16) for x in (a, b)]
        return torch.matmul(*tensors).view(torch.uint16).numpy().view(BFLOAT16)
    return torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_types_are_summed_in_single_precision(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """4096 ones summed across many k-chunks: a half-precision sum would stop at 2048 (bf16: 256)."""
    a, b = np.ones((3, 4096), dtype), np.ones((4096, 300), dtype)
    result, report = run(PLACES["npy"](tmp_path / "a", a), PLACES["npy"](tmp_path / "b", b))
    assert report.steps_run > 4
    assert (result.to_numpy() == dtype.type(4096)).all()


def test_what_half_precision_cannot_hold_becomes_infinite_like_in_core() -> None:
    a, b = np.full((2, 100), 100, np.float16), np.full((100, 2), 100, np.float16)
    result, _ = run(open_store(a), open_store(b))
    assert np.isposinf(result.to_numpy()).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity_spread_like_in_core(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """The same elements are NaN and infinite whatever the tiles: 0 x inf and inf - inf included."""
    a, b = values((280, 300), dtype), values((300, 270), dtype, 1)
    a[3, 7], a[100, 200], a[277, 299], b[11, 13], b[250, 260] = np.nan, np.inf, -np.inf, np.inf, np.nan
    a[50, 11] = 0
    a[60, 100], a[60, 250] = np.inf, -np.inf
    result, _ = run(PLACES["npy"](tmp_path / "a", a), PLACES["npy"](tmp_path / "b", b))
    with np.errstate(invalid="ignore"):
        expected = np.matmul(*(x.astype("c16" if dtype.kind == "c" else "f8") for x in (a, b)))
        got = result.to_numpy().astype(expected.dtype)
        if dtype.kind == "c":
            finite = np.isfinite(expected)
            np.testing.assert_array_equal(np.isfinite(got), finite)
        else:
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
            np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))
            np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around_like_exact_sums_modulo_two(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """Against Python's own integers."""
    a, b = values((20, 70), dtype), values((70, 15), dtype, 1)
    exact = a.astype(object) @ b.astype(object)
    bits = 8 * dtype.itemsize
    wrapped = np.vectorize(lambda value: value % 2**bits, otypes=[np.uint64])(exact)
    result, _ = run(PLACES["npy"](tmp_path / "a", a), PLACES["npy"](tmp_path / "b", b))
    np.testing.assert_array_equal(result.to_numpy(), wrapped.astype(f"u{dtype.itemsize}").view(dtype))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Operands of broadcastable shapes, some longer than a tile, and bytes above the least budget."""
    long = st.sampled_from([1, 2, 5, 31, 64, 257, 300])
    m, k, n = draw(long), draw(long), draw(long)
    batch = draw(st.sampled_from([(), (), (2,), (2, 3)]))
    keep = st.integers(0, len(batch))
    ones = st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))
    lead_a, lead_b = (
        tuple(1 if one else size for size, one in zip(batch, draw(ones), strict=True))[draw(keep) :]
        for _ in range(2)
    )
    if batch:
        m, n = min(m, 64), min(n, 64)
    dtype = draw(st.sampled_from([*FLOATS, *INTEGERS]))
    seed = draw(st.integers(0, 99))
    extra_bytes = draw(st.sampled_from([0, 1, 4096, 1 << 17, 1 << 20]))
    return values((*lead_a, m, k), dtype, seed), values((*lead_b, k, n), dtype, seed + 1), extra_bytes


@settings(max_examples=40)
@given(
    problem=problems(),
    turn_a=st.booleans(),
    turn_b=st.booleans(),
    prefetch=st.booleans(),
    readers=st.integers(1, 3),
)
def test_any_product_just_above_the_least_budget(
    tmp_path_factory: pytest.TempPathFactory,
    problem: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int],
    turn_a: bool,
    turn_b: bool,
    prefetch: bool,
    readers: int,
) -> None:
    a, b, extra_bytes = problem
    folder = tmp_path_factory.mktemp("any")
    stores: Any = [
        PLACES["npy-f" if turned else "npy"](folder / name, array)
        for name, array, turned in (("a", a, turn_a), ("b", b, turn_b))
    ]
    out = folder / "c.npy"
    _, report = run(stores[0], stores[1], out, extra_bytes, prefetch=prefetch, readers=readers)
    assert_close(np.load(out) if a.dtype != BFLOAT16 else np.load(out).view(BFLOAT16), a, b)
    assert_as_planned(report)


@settings(max_examples=15)
@given(edges=st.lists(st.integers(1, 89), max_size=4, unique=True), columns=st.integers(1, 70))
def test_any_tiles_of_the_callers(edges: list[int], columns: int) -> None:
    """Uneven rows, cut again along the columns."""
    a, b = values((90, 33), "f8"), values((33, 70), "f8", 1)
    rows = [0, *sorted(edges), 90]
    tiles = [
        (slice(r0, r1), slice(c, min(c + columns, 70)))
        for r0, r1 in itertools.pairwise(rows)
        for c in range(0, 70, columns)
    ]
    out = np.full((90, 70), np.nan)
    _, report = matmul(open_store(a), open_store(b), out, device=cpu(), budget_bytes=ROOMY, tiles=tiles)
    assert_close(out, a, b)
    assert_as_planned(report)
    assert report.steps_run >= len(tiles)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((2, 3), (4, 5)), ((3,), (4,)), ((2, 3), (4,)), ((2, 2, 3), (3, 3, 4)), ((), (3,)), ((3,), ())],
)
def test_shapes_that_do_not_fit_are_refused_as_torch_refuses_them(
    tmp_path: Path, shape_a: tuple[int, ...], shape_b: tuple[int, ...]
) -> None:
    a, b = np.zeros(shape_a), np.zeros(shape_b)
    with pytest.raises(RuntimeError):
        torch.matmul(torch.from_numpy(a), torch.from_numpy(b))
    with pytest.raises(ShapeError, match=r"\[matmul\]") as error:
        matmul(open_store(a), open_store(b), tmp_path / "c.npy", device=cpu(), budget_bytes=ROOMY)
    assert str(shape_a) in str(error.value)
    assert str(shape_b) in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("one", "other"), [("f4", "f8"), ("f4", "c8"), ("i4", "i8"), ("i4", "u4"), ("f2", "f4")]
)
def test_mixed_types_are_refused_with_both_names(tmp_path: Path, one: str, other: str) -> None:
    a, b = np.zeros((2, 2), one), np.zeros((2, 2), other)
    with pytest.raises(DTypeError) as error:
        matmul(open_store(a), open_store(b), tmp_path / "c.npy", device=cpu(), budget_bytes=ROOMY)
    assert str(a.dtype) in str(error.value)
    assert str(b.dtype) in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [np.bool_, ml_dtypes.float8_e4m3fn, "M8[s]", object, "U3", np.longdouble])
def test_types_that_cannot_be_multiplied_are_refused(dtype: Any) -> None:
    a = np.zeros((2, 2), dtype)
    with pytest.raises(DTypeError):
        matmul(open_store(a), open_store(a.copy()), device=cpu(), budget_bytes=ROOMY)
