"""What the array API's suite leaves open: types, creation, manipulation, products, statistics, numbers."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import autograd

RANDOM = np.random.default_rng(0)
CUBE = RANDOM.normal(size=(2, 3, 4))


def same(found: Any, expected: Any) -> None:
    assert tuple(found.shape) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12, atol=1e-14)


def differentiable(function: Any, *arrays: Any) -> None:
    inputs = [ts.tensor(each, requires_grad=True) for each in arrays]
    assert autograd.gradcheck(function, inputs)
    assert autograd.gradgradcheck(lambda *given: function(*given) ** 2, inputs)


def test_every_public_name_is_there() -> None:
    missing = [name for name in ts.__all__ if not hasattr(ts, name)]
    assert missing == []
    with pytest.raises(AttributeError, match="nothing"):
        _ = ts.nothing


# --- types ------------------------------------------------------------------------------------------------


def test_types_are_equal_hashed_written_and_pickled() -> None:
    for each in ts.dtype:
        assert pickle.loads(pickle.dumps(each)) is each
        assert repr(each) == str(each) == f"tensora.{each.name}"
    assert len(set(ts.dtype)) == 15
    assert ts.float32 != ts.float64


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((ts.int8, ts.uint8), ts.int16),
        ((ts.float16, ts.bfloat16), ts.float32),
        ((ts.int64, ts.float32), ts.float32),
        ((ts.int32, 1.0), ts.float32),
        ((ts.float16, 1), ts.float16),
        ((ts.bool, 1), ts.int64),
        ((ts.float64, 1j), ts.complex128),
        ((ts.float32, 1j), ts.complex64),
        ((ts.uint8, True), ts.uint8),
        ((1, 2.0), ts.float32),
    ],
    ids=str,
)
def test_result_type_is_that_of_operations(given: tuple[Any, ...], expected: Any) -> None:
    assert ts.result_type(*given) == expected
    tensors = [ts.ones(2, dtype=each) if isinstance(each, ts.dtype) else each for each in given]
    if isinstance(given[0], ts.dtype):
        assert (tensors[0] + tensors[1]).dtype == expected


def test_limits_are_numpys() -> None:
    for name in ("float16", "float32", "float64"):
        ours, theirs = ts.finfo(getattr(ts, name)), np.finfo(name)
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(ours, field) == float(getattr(theirs, field))
    for name in ("int8", "uint16", "int64", "uint64"):
        limits, expected = ts.iinfo(getattr(ts, name)), np.iinfo(name)
        assert (limits.bits, limits.min, limits.max) == (expected.bits, expected.min, expected.max)
    assert ts.finfo(ts.bfloat16).max == float.fromhex("0x1.fep127")
    with pytest.raises(TypeError, match="iinfo"):
        ts.finfo(ts.int8)


def test_default_type_can_be_changed() -> None:
    try:
        ts.set_default_dtype("float64")
        assert ts.ones(1).dtype == ts.asarray([1.0]).dtype == (ts.arange(2) / 2).dtype == ts.float64
        assert ts.__array_namespace_info__().default_dtypes()["complex floating"] == ts.complex128
    finally:
        ts.set_default_dtype(ts.float32)
    with pytest.raises(ValueError, match="int8"):
        ts.set_default_dtype(ts.int8)


# --- creation ---------------------------------------------------------------------------------------------


def test_memory_is_shared_where_asked() -> None:
    array = np.zeros((2, 3))
    assert ts.asarray(array)[0, 0] == 0
    ts.asarray(array)[0, 0] = 1
    ts.asarray(array, copy=False)[0, 1] = 2
    ts.asarray(array, copy=True)[0, 2] = 3
    ts.tensor(array)[0, 2] = 3
    assert array[0].tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="copy"):
        ts.asarray([1.0], copy=False)
    with pytest.raises(ValueError, match="float32"):
        ts.asarray(array, dtype=ts.float32, copy=False)


def test_lists_may_hold_arrays_and_numbers_of_numpy() -> None:
    assert ts.asarray([np.float32(1), np.int64(2)]).dtype == ts.float32
    assert ts.asarray([np.int32(1), np.int32(2)]).dtype == ts.int32
    same(ts.asarray([np.arange(3), ts.arange(3)]), [[0, 1, 2], [0, 1, 2]])
    assert ts.asarray(range(3)).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="unequal"):
        ts.asarray([[1, 2], [3]])
    with pytest.raises(TypeError, match="str"):
        ts.asarray(["a"])


@pytest.mark.parametrize("given", [(5,), (2, 9, 3), (9, 2, -2), (0.0, 1.0, 0.1), (3, 1), (2**60, 2**60 + 3)])
def test_arange(given: tuple[Any, ...]) -> None:
    same(ts.arange(*given, dtype=ts.float64), np.arange(*given, dtype=np.float64))


def test_wrong_shapes_and_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        ts.zeros((-1,))
    with pytest.raises(ValueError, match="no device 'tpu'; give 'cpu', 'cuda' or 'cuda:0'"):
        ts.zeros(1, device="tpu")
    with pytest.raises(ValueError, match="step"):
        ts.arange(1, 2, 0)
    with pytest.raises(ValueError, match="matrix"):
        ts.tril(ts.ones(3))


# --- manipulation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda xp, x: xp.roll(x, (1, -2), axis=(0, 2)),
        lambda xp, x: xp.roll(x, 5),
        lambda xp, x: xp.tile(x, (2, 1, 1, 2)),
        lambda xp, x: xp.repeat(x, 2, axis=1),
        lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 1]), axis=1),
        lambda xp, x: xp.moveaxis(x, (0, 1), (-1, 0)),
        lambda xp, x: xp.flip(x, axis=(0, 2)),
        lambda xp, x: xp.concat([x, x * 2], axis=-1),
        lambda xp, x: xp.stack([x, x * 2], axis=1),
        lambda xp, x: xp.unstack(x, axis=1)[2],
        lambda xp, x: xp.split(x, 2, axis=2)[1],
        lambda xp, x: xp.split(x, [1, 2], axis=1)[2],
        lambda xp, x: xp.diff(x, axis=1, n=2),
        lambda xp, x: xp.squeeze(xp.expand_dims(x, axis=1), axis=1),
        lambda xp, x: xp.broadcast_arrays(x, x[:, :1])[1] * 2,
        lambda xp, x: xp.tril(x, k=-1) + xp.triu(x, k=1),
        lambda xp, x: xp.clip(x, -0.5, 0.5),
        lambda xp, x: xp.var(x, axis=1),
        lambda xp, x: xp.std(x),
        lambda xp, x: xp.mean(x, axis=(0, 2), keepdims=True),
        lambda xp, x: xp.cumulative_sum(x, axis=1, include_initial=True),
        lambda xp, x: xp.prod(x, axis=0),
    ],
)
def test_functions_of_one_array(function: Any) -> None:
    same(function(ts, ts.asarray(CUBE)), function(np, CUBE))
    differentiable(lambda x: function(ts, x), CUBE)


def test_chunks() -> None:
    assert [each.shape for each in ts.chunk(ts.zeros((7, 2)), 3)] == [(3, 2), (3, 2), (1, 2)]
    with pytest.raises(ValueError, match="chunk"):
        ts.split(ts.zeros(7), 2)


def test_logsumexp_at_the_edges() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf], [np.inf, 0.0]])
    same(ts.logsumexp(ts.asarray(x), axis=1), [1000 + np.log(2), -np.inf, np.inf])
    differentiable(lambda x: ts.logsumexp(x, axis=1), CUBE)


# --- products ---------------------------------------------------------------------------------------------

EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
    ("...,...", (2, 3), (3,)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iji->j", (3, 2, 3)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("i,i", (3,), (3,)),
    ("ij,kl->il", (3, 4), (5, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ij,ij->ij", (3, 4), (1, 4)),
    ("ab,ab,c->", (2, 3), (2, 3), (4,)),
]


@pytest.mark.parametrize("case", EINSUMS, ids=lambda case: case[0])
def test_einsum(case: tuple[Any, ...]) -> None:
    arrays = [RANDOM.normal(size=shape) for shape in case[1:]]
    same(ts.einsum(case[0], *map(ts.asarray, arrays)), np.einsum(case[0], *arrays))
    differentiable(lambda *given: ts.einsum(case[0], *given), *arrays)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(2, 3)]),
        ("ij", [(2,)]),
        ("ij,jk->ik", [(2, 3), (4, 5)]),
        ("ij->ik", [(2, 3)]),
        ("i->ii", [(2,)]),
    ],
)
def test_wrong_einsums_are_refused(subscripts: str, shapes: Any) -> None:
    with pytest.raises(ValueError, match="einsum"):
        ts.einsum(subscripts, *(ts.zeros(shape) for shape in shapes))


def test_tensordot_and_vecdot() -> None:
    a, b = RANDOM.normal(size=(3, 4, 2)), RANDOM.normal(size=(4, 2, 5))
    for axes in (2, 0, ((1, 2), (0, 1)), ((-1,), (1,))):
        same(ts.tensordot(ts.asarray(a), ts.asarray(b), axes=axes), np.tensordot(a, b, axes=axes))
    z = RANDOM.normal(size=(3, 4)) + 1j
    same(ts.vecdot(ts.asarray(z), ts.asarray(z[0])), np.vecdot(z, z[0]))


# --- numbers beside tensors -------------------------------------------------------------------------------


def test_numbers_of_python_and_numpy_meet_tensors() -> None:
    x = ts.asarray([1.0, 2.0])
    for other, kept in itertools.product((2, 2.0, True), (True, False)):
        assert ((x * other) if kept else (other * x)).dtype == ts.float32
    for made in (x + np.ones(2), np.ones(2) + x, np.float32(1) + x):
        assert isinstance(made, ts.Tensor)
        assert made.tolist() == [2, 3]
    assert ts.where(x > 1, 1, 0).dtype == ts.int64
    assert ts.maximum(x, 1.5).tolist() == [1.5, 2.0]


@pytest.mark.parametrize("limits", [(-5, 300), (None, 100), (3, None), (None, None), (200, 250)])
def test_limits_beyond_the_type(limits: tuple[Any, Any]) -> None:
    x = np.array([0, 100, 255], np.uint8)
    found = ts.clip(ts.asarray(x), *limits)
    assert found.dtype == ts.uint8
    low, high = limits
    expected = np.clip(x.astype(int), low, high) if limits != (None, None) else x
    same(found, expected)
