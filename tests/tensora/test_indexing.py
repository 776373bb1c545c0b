"""Indices of all kinds, read and assigned, as NumPy does; and gradients through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import accelera.tensora as ts
from accelera.tensora import autograd

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
QUICK = settings(max_examples=150, deadline=None, derandomize=True)


def numbered(shape: tuple[int, ...]) -> Any:
    return np.reshape(np.arange(float(np.prod(shape))), shape)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Any, Any]:
    """The same elements in NumPy and here, some as views with other strides."""
    array = numbered(draw(SHAPES))
    tensor = ts.asarray(array, copy=True)
    kind = draw(st.sampled_from(["plain", "transposed", "flipped", "stepped"]))
    if array.ndim == 0 or kind == "plain":
        return array, tensor
    if kind == "transposed":
        return array.T, tensor.T
    return (np.flip(array), ts.flip(tensor)) if kind == "flipped" else (array[::2], tensor[::2])


def as_ours(key: Any) -> Any:
    """The key with NumPy's arrays as tensors."""
    if isinstance(key, tuple):
        return tuple(as_ours(each) for each in key)
    return ts.asarray(key, copy=True) if isinstance(key, np.ndarray) else key


@st.composite
def advanced(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Integer arrays that broadcast, masks, numbers and slices, mixed."""
    common = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3))
    key: list[Any] = []
    axis = 0
    while axis < len(shape) and draw(st.integers(0, 5)):
        extent = shape[axis]
        kinds = ["slice", "mask", "new", *(["array", "array", "number"] if extent else [])]
        kind = draw(st.sampled_from(kinds))
        if kind == "array":
            key.append(draw(hnp.arrays(np.int64, common, elements=st.integers(-extent, extent - 1))))
        elif kind == "mask":
            # One true element, so that it broadcasts with the arrays.
            mask = np.zeros(extent, bool)
            mask[: min(1, extent)] = True
            key.append(mask)
        elif kind == "number":
            key.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "slice":
            key.append(draw(st.slices(extent)))
        else:
            key.append(None)
        axis += kind != "new"
    if draw(st.booleans()):
        key.append(...)
    return tuple(key)


def same(found: Any, expected: Any) -> None:
    assert tuple(found.shape) == np.shape(expected)
    np.testing.assert_array_equal(np.asarray(found), expected)


@given(st.data())
@QUICK
def test_basic_get_and_set(data: st.DataObject) -> None:
    array, tensor = data.draw(layouts())
    key = data.draw(hnp.basic_indices(array.shape, allow_newaxis=True))
    found, expected = tensor[key], array[key]
    same(found, expected)
    array[key] = -1
    tensor[key] = -1
    same(tensor, array)
    same(found, array[key])  # a view sees what was written


@given(st.data())
@QUICK
def test_advanced_get_and_set(data: st.DataObject) -> None:
    array, tensor = data.draw(layouts())
    key = data.draw(advanced(array.shape))
    try:
        expected = array[key]
    except IndexError:
        with pytest.raises((IndexError, ValueError)):
            tensor[as_ours(key)]
        return
    same(tensor[as_ours(key)], expected)
    array[key] = -1
    tensor[as_ours(key)] = -1
    same(tensor, array)


@given(st.data())
@QUICK
def test_masks_of_several_axes(data: st.DataObject) -> None:
    array, tensor = data.draw(layouts())
    n = data.draw(st.integers(0, array.ndim))
    mask = data.draw(hnp.arrays(bool, array.shape[:n]))
    same(tensor[ts.asarray(mask, copy=True)], array[mask])
    values = numbered(array[mask].shape) + 100
    array[mask] = values
    tensor[ts.asarray(mask, copy=True)] = ts.asarray(values)
    same(tensor, array)


@given(st.data())
@QUICK
def test_assigned_values_broadcast(data: st.DataObject) -> None:
    array, tensor = data.draw(layouts())
    key = data.draw(hnp.basic_indices(array.shape))
    shape = np.shape(array[key])
    cut = data.draw(st.integers(0, len(shape)))
    values = numbered(tuple(1 if data.draw(st.booleans()) else n for n in shape[cut:])) + 50
    array[key] = values
    tensor[key] = ts.asarray(values)
    same(tensor, array)


def test_lists_and_arrays_of_numpy_are_indices() -> None:
    x = numbered((4, 3))
    t = ts.asarray(x)
    same(t[[2, 0]], x[[2, 0]])
    same(t[np.array([1, -1])], x[[1, -1]])
    same(t[[True, False, True, False]], x[[0, 2]])
    same(t[ts.asarray(1)], x[1])
    same(t[:, None, [0, 2]], x[:, None, [0, 2]])


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (4, IndexError),
        ((0, 0, 0), IndexError),
        ((..., ...), IndexError),
        ([5], IndexError),
        (1.0, IndexError),
        ("a", IndexError),
        (np.ones(3, bool), IndexError),
    ],
)
def test_wrong_indices_are_refused(key: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ts.zeros((4, 3))[as_ours(key)]


def test_wrong_values_are_refused() -> None:
    x = ts.zeros((4, 3), dtype=ts.int64)
    with pytest.raises(TypeError, match="int64"):
        x[0] = 1.5
    with pytest.raises(ValueError, match="broadcast"):
        x[0] = ts.ones(2, dtype=ts.int64)


@pytest.mark.parametrize(
    "key",
    [0, slice(None, None, -2), (..., 1), np.array([[0, 2], [2, 2]]), (slice(1, 3), np.array([0, 0, 1]))],
    ids=str,
)
def test_gradients(key: Any) -> None:
    x = ts.tensor(np.random.default_rng(0).normal(size=(3, 3)), requires_grad=True)
    key = as_ours(key)
    assert autograd.gradcheck(lambda x: x[key], x)
    assert autograd.gradgradcheck(lambda x: x[key] ** 2, x)

    def assigned(x: Any, value: Any) -> Any:
        copy = x * 1
        copy[key] = value
        return copy**2

    value = ts.tensor(2.0, dtype=ts.float64, requires_grad=True)
    assert autograd.gradcheck(assigned, [x, value])
