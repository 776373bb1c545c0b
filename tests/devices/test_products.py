"""Products of NumPy arrays that lie in any way, against NumPy's own on exact small integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.devices import CpuDevice, products
from accelera.devices import blas as blas_module
from accelera.devices.blas import blas

DEVICE = CpuDevice()
DTYPES = [np.dtype(name) for name in ("float32", "float64", "complex64", "complex128", "int32", "uint8")]
LAYOUTS = ("row-major", "column-major", "cut", "every other", "reversed", "repeated rows", "unaligned")

Array = np.ndarray[Any, Any]


def lying(values: Array, how: str) -> Array:
    """Return ``values`` (or for repeated rows, its first one repeated) lying in memory as ``how`` says."""
    rows, columns = values.shape
    if how == "column-major":
        return np.asfortranarray(values)
    if how == "reversed":
        return values[::-1, ::-1].copy()[::-1, ::-1]
    if how == "repeated rows":
        return np.broadcast_to(values[:1], values.shape)
    if how == "unaligned":
        memory = np.zeros(values.nbytes + 1, np.uint8)
        view = memory[1:].view(values.dtype).reshape(values.shape)
        view[...] = values
        return view
    room = np.zeros((2 * rows + 3, 2 * columns + 3), values.dtype)
    place = room[2 : rows + 2, 3 : columns + 3] if how == "cut" else room[:-3:2, :-3:2]
    if how == "row-major":
        return values
    place[...] = values
    return place


@st.composite
def matrices(draw: st.DrawFn, dtype: np.dtype[Any], rows: int, columns: int, written: bool = False) -> Array:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.integers(0, 5, (rows, columns)).astype(dtype)
    if dtype.kind == "c":
        values = values + (1j * rng.integers(-4, 5, values.shape)).astype(dtype)
    known = [name for name in LAYOUTS if not (written and name == "repeated rows")]
    return lying(values, draw(st.sampled_from(known)))


lengths = st.integers(0, 12)


@given(st.data(), st.sampled_from(DTYPES), lengths, lengths, lengths, st.booleans(), st.booleans())
def test_any_layout(
    data: st.DataObject, dtype: np.dtype[Any], m: int, n: int, k: int, accumulate: bool, conjugate: bool
) -> None:
    a, b = data.draw(matrices(dtype, m, k)), data.draw(matrices(dtype, k, n))
    c = data.draw(matrices(dtype, m, n, written=True))
    expected = (a.conj() if conjugate else a) @ b + (c if accumulate else np.zeros_like(c))
    if not accumulate and dtype.kind in "fc":
        c.fill(np.nan)
    DEVICE.gemm(a, b, c, accumulate=accumulate, conjugate_a=conjugate)
    np.testing.assert_array_equal(c, expected)


@given(st.data(), st.sampled_from(DTYPES), lengths, lengths, st.booleans())
def test_gram_of_any_layout(data: st.DataObject, dtype: np.dtype[Any], k: int, n: int, add: bool) -> None:
    a, c = data.draw(matrices(dtype, k, n)), data.draw(matrices(dtype, n, n, written=True))
    np.fill_diagonal(c, c.diagonal().real)
    expected = np.triu(a.conj().T @ a + (c if add else np.zeros_like(c)))
    DEVICE.gram(a, c, accumulate=add)
    np.testing.assert_array_equal(np.triu(c), expected)
    DEVICE.symmetrize(c)
    np.testing.assert_array_equal(c, expected + np.triu(expected, 1).conj().T)


@st.composite
def batches(draw: st.DrawFn, batch: tuple[int, ...], shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Return an array of the batch (or of a shape that broadcasts to it), axes lying in any order."""
    sizes = [draw(st.sampled_from((1, size))) for size in batch][draw(st.integers(0, len(batch))) :]
    full = (*sizes, *shape)
    order = draw(st.permutations(range(len(full))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.integers(0, 5, [full[axis] for axis in order]).astype(dtype)
    return values.transpose(np.argsort(order))


@given(
    st.data(),
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.tuples(*[st.sampled_from((0, 1, 2, 5, 40))] * 3),
    st.booleans(),
)
def test_any_batch(
    data: st.DataObject, dtype: np.dtype[Any], batch: list[int], size: tuple[int, int, int], add: bool
) -> None:
    m, k, n = size
    a, b = data.draw(batches(tuple(batch), (m, k), dtype)), data.draw(batches(tuple(batch), (k, n), dtype))
    c = np.ones((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n), dtype)
    expected = a @ b + (c if add else np.zeros_like(c))
    DEVICE.gemm(a, b, c, accumulate=add)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 5), (9, 1, 5), (9, 5, 1), (70, 70, 70)])
def test_what_a_result_held_never_enters_it(dtype: np.dtype[Any], shape: tuple[int, int, int]) -> None:
    """Also where the library would use a matrix-vector product."""
    m, n, k = shape
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    for poison in (np.nan, np.inf):
        for order in "CF":
            c = np.full((m, n), poison, dtype, order=order)  # type: ignore[call-overload]
            DEVICE.gemm(a, b, c, accumulate=False)
            assert (c == k).all()


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_operands_are_packed_in_many_blocks(
    monkeypatch: pytest.MonkeyPatch, dtype: np.dtype[Any], how: str
) -> None:
    monkeypatch.setattr(products, "PACKING_BYTES", 2048)
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 4, (37, 41)).astype(dtype), rng.integers(0, 4, (41, 53)).astype(dtype)
    a, b = lying(a, how), lying(b, how)
    c = lying(np.ones((37, 53), dtype), "every other" if how == "repeated rows" else how)
    DEVICE.gemm(a, b, c, accumulate=True, conjugate_a=True)
    np.testing.assert_array_equal(c, a.conj() @ b + np.ones_like(c))


def test_axes_too_long_for_the_library_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blas_module, products):
        monkeypatch.setattr(module, "MOST_ELEMENTS", 16)
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 4, (41, 12)).astype(float), rng.integers(0, 4, (12, 16)).astype(float)
    a, b = np.asfortranarray(a), np.asfortranarray(b)
    c = np.zeros((41, 16))
    DEVICE.gemm(a, b, c, accumulate=False)
    np.testing.assert_array_equal(c, a @ b)
    gram = np.zeros((16, 16))
    DEVICE.gram(np.ascontiguousarray(a @ b), gram, accumulate=False)
    np.testing.assert_array_equal(np.triu(gram), np.triu((a @ b).T @ (a @ b)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wide_results_are_computed_span_by_span(
    monkeypatch: pytest.MonkeyPatch, dtype: np.dtype[Any]
) -> None:
    monkeypatch.setattr(products, "SPAN_BYTES", 64)
    monkeypatch.setattr(products, "_STRIP", 5)
    if blas().takes(dtype):
        monkeypatch.setattr(blas()._routines[dtype], "_span", 7)
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 4, (20, 33)).astype(dtype), rng.integers(0, 4, (33, 50)).astype(dtype)
    for order in "CF":
        c = np.ones((20, 50), dtype, order=order)  # type: ignore[call-overload]
        DEVICE.gemm(a, b, c, accumulate=True)
        np.testing.assert_array_equal(c, a @ b + np.ones_like(c))
        square = np.ones((33, 33), dtype, order=order)  # type: ignore[call-overload]
        DEVICE.gram(a, square, accumulate=True)
        np.testing.assert_array_equal(np.triu(square), np.triu(a.conj().T @ a + np.ones_like(square)))


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_a_mirrored_matrix_of_several_blocks_is_hermitian(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(4)
    c = rng.standard_normal((300, 300)).astype(dtype)
    if dtype.kind == "c":
        c = c + (1j * rng.standard_normal(c.shape)).astype(dtype)
    expected = np.triu(c) + np.triu(c, 1).conj().T
    DEVICE.symmetrize(c)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize(
    ("how", "taken"),
    [("row-major", True), ("column-major", True), ("cut", True), ("every other", False), ("reversed", False)],
)
def test_which_layouts_are_taken_as_they_lie(how: str, taken: bool) -> None:
    assert DEVICE.can_take(lying(np.ones((6, 4)), how)) is taken
    assert DEVICE.can_take(lying(np.ones((6, 4), np.int16), how)), "our integer kernel takes any strides"


def test_which_odd_arrays_are_taken() -> None:
    assert DEVICE.can_take(np.ones((3, 0, 4))[:, :, ::2])
    assert DEVICE.can_take(np.ones(8))
    assert DEVICE.can_take(np.ones((5, 4, 3)).transpose(0, 2, 1))
    assert not DEVICE.can_take(np.ones((5, 4, 3)).transpose(2, 1, 0)[..., ::2])
    assert not DEVICE.can_take(np.lib.stride_tricks.sliding_window_view(np.ones(9), 4))
    assert not DEVICE.can_take(lying(np.ones((3, 3)), "unaligned"))


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("depth", [1, 7, 300, 2000])
def test_error_is_no_worse_than_numpys(dtype: np.dtype[Any], depth: int) -> None:
    rng = np.random.default_rng(depth)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((60, depth), (depth, 50)))
    if dtype.kind == "c":
        a = a * np.exp(1j * rng.uniform(0, 6, a.shape)).astype(dtype)
    wide = np.clongdouble if dtype.kind == "c" else np.longdouble
    exact = a.astype(wide) @ b.astype(wide)
    c, slabs = np.empty((60, 50), dtype), np.zeros((60, 50), dtype)
    DEVICE.gemm(a, b, c, accumulate=False)
    for start in range(0, depth, 256):
        part = slice(start, start + 256)
        DEVICE.gemm(a[:, part], b[part], slabs, accumulate=True)
    unit = np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))
    usual = (np.abs(a @ b - exact) / unit).max()
    assert (np.abs(c - exact) / unit).max() <= 2 * usual + 1
    assert (np.abs(slabs - exact) / unit).max() <= 2 * usual + 1
