"""NumPy arrays and lists in RAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores import Store, open_store
from accelera.stores._internal import OutputStore, create_store, whole
from accelera.testing._internal import OutputContract
from accelera.testing.store_contract import sample


class TestArray(OutputContract):
    dtypes = (*OutputContract.dtypes, "bfloat16", "uint64", "complex128")

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        return open_store(array.copy())

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        return create_store(None, shape, dtype)


class TestStridedArray(TestArray):
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        wide = np.zeros([2 * size for size in array.shape], array.dtype)
        key: Any = (..., *(slice(None, None, -2) for _ in array.shape))
        wide[key] = array
        return open_store(wide[key])


def test_an_array_is_used_in_place() -> None:
    array = sample((4, 5), "float32")[::-1, ::2]
    store = open_store(array)
    assert store.resident() is array
    assert np.shares_memory(store.T.resident(), array)
    assert store.layout.strides == array.strides
    assert store.tier == "ram"


def test_lists_and_numbers_are_arrays() -> None:
    np.testing.assert_array_equal(open_store([[1, 2], [3, 4]]).to_numpy(), [[1, 2], [3, 4]])
    assert open_store(2.5).shape == ()


def test_a_store_is_returned_as_it_is() -> None:
    store = open_store(np.ones((2, 3)))
    assert open_store(store) is store
    with pytest.raises(ShapeError):
        open_store(store, shape=(3, 2))
    with pytest.raises(DTypeError):
        open_store(store, dtype="float32")


def test_a_given_array_is_filled() -> None:
    target = np.zeros((4, 5), np.float32, order="F")
    output = create_store(target, (4, 5), "float32")
    output.write(whole((4, 5)), np.ones((4, 5), np.float32))
    output.commit()
    assert (target == 1).all()
    assert output.resident() is target


def test_an_array_that_cannot_take_the_result_is_refused() -> None:
    target = np.zeros((4, 5), np.float32)
    with pytest.raises(ShapeError, match=r"\(5, 4\)"):
        create_store(target, (5, 4), "float32")
    with pytest.raises(DTypeError, match="float64"):
        create_store(target, (4, 5), "float64")
    with pytest.raises(StoreError, match="resume"):
        create_store(target, (4, 5), "float32", resume=True)
    target.flags.writeable = False
    with pytest.raises(StoreError, match="read-only"):
        create_store(target, (4, 5), "float32")


def test_a_read_only_array_is_not_written() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(StoreError, match="read-only"):
        open_store(array).write(whole((3,)), np.ones(3))


@pytest.mark.parametrize("x", [np.array(["a"]), np.array([None]), np.zeros(2, "f4,i4"), np.zeros(2, "M8[s]")])
def test_elements_no_store_holds_are_refused(x: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DTypeError):
        open_store(x)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4", "longdouble", "object", "nonsense", "S3", None])
def test_results_no_store_holds_are_refused(dtype: Any) -> None:
    with pytest.raises(DTypeError):
        create_store(None, (2,), dtype if dtype is not None else object())


@pytest.mark.parametrize("x", [{}, None, object(), b"bytes"])
def test_what_is_no_operand_is_refused(x: Any) -> None:
    with pytest.raises(DTypeError, match="give a path"):
        open_store(x)


def test_file_options_mean_nothing_for_arrays() -> None:
    with pytest.raises(StoreError, match="offset"):
        open_store(np.ones(3), offset=8)
    with pytest.raises(StoreError, match="'C' or 'F'"):
        create_store(None, (2,), "float32", order="K")
    with pytest.raises(ShapeError, match="negative"):
        create_store(None, (-2,), "float32")
