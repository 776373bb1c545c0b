"""The integer matrix product against NumPy's, over every dtype, layout and block boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accelera import _native

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = [np.dtype(f"{sign}{width}") for sign in "iu" for width in (1, 2, 4, 8)]
sizes = st.integers(0, 40)


def full_range(seed: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def rows_as_they_come(x: Array) -> Array:
    return x


def column_major(x: Array) -> Array:
    return np.asfortranarray(x)


def reversed_both_ways(x: Array) -> Array:
    return x[::-1, ::-1].copy()[::-1, ::-1]


def every_other(x: Array) -> Array:
    wide = np.empty((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    return wide[::2, ::3]


LAYOUTS = [rows_as_they_come, column_major, reversed_both_ways, every_other]


@given(
    shape=st.tuples(sizes, sizes, sizes),
    dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(*3 * [st.sampled_from(LAYOUTS)]),
    accumulate=st.booleans(),
    threads=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
@example((5, 0, 7), np.dtype("i4"), (column_major,) * 3, False, 1, 0)
@example((5, 0, 7), np.dtype("i4"), (column_major,) * 3, True, 1, 0)
def test_same_integers_as_numpy(
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    layouts: tuple[Any, Any, Any],
    accumulate: bool,
    threads: int,
    seed: int,
) -> None:
    m, k, n = shape
    shapes = ((m, k), (k, n), (m, n))
    a, b, c = (lay(full_range(seed, s, dtype)) for lay, s in zip(layouts, shapes, strict=True))
    expected = c + a @ b if accumulate else a @ b
    _native.igemm(a, b, c, accumulate, threads=threads)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(301, 520, 1030), (700, 3, 1), (1, 300, 700), (150, 300, 2)], ids=str)
def test_block_boundaries(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    m, k, n = shape
    a, b = full_range(1, (m, k), dtype), full_range(2, (k, n), dtype)
    c = full_range(3, (m, n), dtype)
    _native.igemm(a, b, c, False, threads=3)
    sample = np.random.default_rng(0).integers(0, m, 4)
    np.testing.assert_array_equal(c[sample], a[sample] @ b)
    np.testing.assert_array_equal(c[:, -1], a @ b[:, -1])


def test_broadcast_operands_are_read_in_place() -> None:
    row = np.arange(50, dtype=np.int16)
    a, b = np.broadcast_to(row, (60, 50)), np.broadcast_to(row[:, None], (50, 70))
    c = np.empty((60, 70), np.int16)
    _native.igemm(a, b, c, False)
    np.testing.assert_array_equal(c, a @ b)


def test_operands_may_be_read_only_but_the_result_not() -> None:
    a = np.ones((2, 2), np.int32)
    a.flags.writeable = False
    c = np.empty((2, 2), np.int32)
    _native.igemm(a, a, c, False)
    assert c.tolist() == [[2, 2], [2, 2]]
    with pytest.raises(TypeError):
        _native.igemm(c, c, a, False)


@pytest.mark.parametrize(
    ("dtypes", "error"),
    [
        (("f4", "f4", "f4"), TypeError),
        (("i4", "i8", "i4"), TypeError),
        (("i4", "u4", "i4"), TypeError),
        (("?", "?", "?"), TypeError),
    ],
)
def test_one_integer_dtype(dtypes: tuple[str, str, str], error: type[Exception]) -> None:
    with pytest.raises(error, match="igemm"):
        a, b, c = (np.ones((2, 2), d) for d in dtypes)
        _native.igemm(a, b, c, False)


@pytest.mark.parametrize("others", [((2, 3), (2, 3)), ((3, 2), (3, 2)), ((3, 4), (2, 3))])
def test_shapes_that_do_not_fit_are_named(others: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match=r"\[igemm\].*\(2, 3\) @ \([23], [234]\)"):
        a, b, c = (np.ones(s, np.int64) for s in ((2, 3), *others))
        _native.igemm(a, b, c, False)


def test_lists_and_vectors_are_refused() -> None:
    with pytest.raises(TypeError):
        _native.igemm([[1]], [[1]], [[1]], False)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        a = np.ones(2, np.int32)
        _native.igemm(a, a, a, False)


def test_workspace_is_what_the_largest_blocks_need() -> None:
    assert _native.igemm_workspace_bytes(1, 1) == _native.igemm_workspace_bytes(2, 1)
    assert _native.igemm_workspace_bytes(8, 3) == 3 * _native.igemm_workspace_bytes(8, 1)
    with pytest.raises(ValueError, match="item size"):
        _native.igemm_workspace_bytes(3)


@pytest.mark.skipif(_native.cuda_compiled(), reason="this build has the CUDA kernels")
def test_a_build_without_cuda_says_how_to_get_it() -> None:
    with pytest.raises(RuntimeError, match="ACCELERA_CUDA=ON"):
        _native.igemm_cuda(0, 0, 0, 1, 1, 1, (1, 1), (1, 1), (1, 1), 4)


@pytest.mark.parametrize(
    ("rows", "columns", "count"),
    [
        (1, 1, 1),
        (64, 65, 1),
        (1, 65_535 * 64, 1),
        (3, 65_535 * 64 + 1, 2),
        (2**31, 2**24, 5),
        (2**37, 1, 2),
        (0, 5, 0),
    ],
)
def test_every_launch_is_one_that_cuda_accepts(rows: int, columns: int, count: int) -> None:
    """CUDA launches at most 2^31 - 1 blocks along x and 65,535 along y; each has a tile of 64 x 64."""
    launches = _native.igemm_cuda_launches(rows, columns)
    assert len(launches) == count
    assert sum(height * width for _, _, height, width, _, _ in launches) == rows * columns
    assert len({(row, column) for row, column, *_ in launches}) == count
    for row, column, height, width, x, y in launches:
        assert (x, y) == (-(-height // 64), -(-width // 64))
        assert x < 2**31
        assert y < 2**16
        assert (row + height <= rows, column + width <= columns) == (True, True)


@pytest.mark.cuda
@pytest.mark.skipif(not _native.cuda_compiled(), reason="this build has no CUDA kernels")
@pytest.mark.parametrize("turned", [False, True])
def test_cuda_computes_more_columns_than_one_launch_takes(turned: bool) -> None:
    import torch

    rows, columns, depth = 2, 65_535 * 64 + 130, 3
    left = torch.arange(rows * depth, dtype=torch.uint8, device="cuda").view(rows, depth)
    right = torch.arange(depth * columns, device="cuda").remainder(251).to(torch.uint8).view(depth, columns)
    result = torch.zeros(columns, rows, dtype=torch.uint8, device="cuda").T if turned else None
    result = torch.zeros(rows, columns, dtype=torch.uint8, device="cuda") if result is None else result
    strides: Any = (left.stride(), right.stride(), result.stride())
    pointers = (left.data_ptr(), right.data_ptr(), result.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream
    _native.igemm_cuda(*pointers, rows, columns, depth, strides[0], strides[1], strides[2], 1, False, stream)
    expected: Any = sum(left[:, d, None].int() * right[None, d].int() for d in range(depth)) % 256
    assert torch.equal(result.int(), expected)


@pytest.mark.cuda
@pytest.mark.skipif(not _native.cuda_compiled(), reason="this build has no CUDA kernels")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (65, 17, 130), (200, 300, 100)], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_cuda_agrees_with_numpy(dtype: str, shape: tuple[int, int, int], accumulate: bool) -> None:
    import torch

    m, k, n = shape
    a, b, c = (full_range(i, s, np.dtype(dtype)) for i, s in enumerate([(m, k), (n, k), (m, n)]))
    x, y, z = (torch.from_numpy(t).cuda() for t in (a, b, c))
    y = y.T
    stream = torch.cuda.current_stream().cuda_stream
    strides: Any = (x.stride(), y.stride(), z.stride())
    pointers = (x.data_ptr(), y.data_ptr(), z.data_ptr())
    _native.igemm_cuda(
        *pointers, m, n, k, strides[0], strides[1], strides[2], x.element_size(), accumulate, stream
    )
    expected = c + a @ b.T if accumulate else a @ b.T
    np.testing.assert_array_equal(z.cpu().numpy(), expected)
