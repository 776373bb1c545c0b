"""Python sequences that change while they are converted: a tensor of some state of them, or an error."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accelera.tensora as ts
from tests.children import answer_of

ERRORS = (ValueError, RuntimeError, TypeError, IndexError, OverflowError, MemoryError)
SIZE = 300


def _grow(rows: list[Any]) -> None:
    if len(rows) < 200_000:
        rows.extend([1] * 5000)


def _replace(rows: list[Any]) -> None:
    rows[:] = [[1, 2], [3]] * 50


CHANGES: dict[str, Callable[[list[Any]], None]] = {
    "grow": _grow,
    "shrink": lambda rows: rows.__delitem__(slice(1, None)),
    "clear": lambda rows: rows.clear(),
    "replace": _replace,
    "grow first row": lambda rows: _grow(rows[0]) if rows and isinstance(rows[0], list) else None,
}


class Number:
    """A number whose conversion changes a sequence."""

    def __init__(self, rows: list[Any], change: Callable[[list[Any]], None]) -> None:
        self.rows, self.change = rows, change

    def __float__(self) -> float:
        self.change(self.rows)
        return 2.0

    def __index__(self) -> int:
        self.change(self.rows)
        return 1


class Integer(int):
    """An integer whose conversion to a float changes a sequence."""

    rows: list[Any]
    change: Any

    def __float__(self) -> float:
        type(self).change(self.rows)
        return 2.0


class Lender(Number):
    """An array whose export changes a sequence."""

    def __dlpack__(self, **_: Any) -> Any:
        self.change(self.rows)
        return np.ones(3).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        self.change(self.rows)
        return (1, 0)


class ShortList(list):
    """A list that reports another length than it has."""

    def __len__(self) -> int:
        return 2


def _convert(rows: Any) -> Any:
    return ts.asarray(rows, dtype=ts.float64)


READERS: dict[str, Callable[[Any], Any]] = {
    "asarray": ts.asarray,
    "asarray of float64": _convert,
    "tensor": ts.tensor,
    "subscript": lambda rows: ts.ones((4, 4, 4))[rows],
    "subscripts": lambda rows: ts.ones((4, 4, 4))[rows, 0],
    "assignment": lambda rows: ts.ones((4,)).__setitem__(slice(None), rows),
    "index of assignment": lambda rows: ts.ones((4, 4)).__setitem__(rows, 1.0),
    "zeros": ts.zeros,
    "reshape": lambda rows: ts.reshape(ts.ones(4), rows),
    "permute_dims": lambda rows: ts.permute_dims(ts.ones((2, 3)), rows),
    "broadcast_to": lambda rows: ts.broadcast_to(ts.ones(1), rows),
    "sum": lambda rows: ts.sum(ts.ones((2, 3)), axis=rows),
    "concat": ts.concat,
    "tile": lambda rows: ts.tile(ts.ones(2), rows),
    "flip": lambda rows: ts.flip(ts.ones((2, 3)), axis=rows),
}


def _sequences(change: Callable[[list[Any]], None]) -> dict[str, list[Any]]:
    """Sequences, by name, each with an element that changes it."""
    sequences: dict[str, list[Any]] = {}
    for kind in (Number, Lender):
        rows: list[Any] = []
        rows += [kind(rows, change), *[1] * SIZE]
        sequences[f"{kind.__name__} first"] = rows
        rows = []
        rows += [1, 2, kind(rows, change), 1]
        sequences[f"{kind.__name__} inside"] = rows
        rows = []
        rows += [[1.0, kind(rows, change)], [1.0] * 2, [1.0] * 2]
        sequences[f"{kind.__name__} nested"] = rows
    rows = []
    owner = type("OwnInteger", (Integer,), {"rows": rows, "change": staticmethod(change)})
    rows += [owner(1), *[1.0] * SIZE]
    sequences["Integer"] = rows
    rows = ShortList([Number(sequences["Integer"], change), 1, 2, 3])
    sequences["ShortList"] = rows
    return sequences


def all_conversions() -> int:
    """Return the number of conversions that ended with a result or an error."""
    ended = 0
    for (_, read), change in itertools.product(READERS.items(), CHANGES.values()):
        for rows in _sequences(change).values():
            with contextlib.suppress(*ERRORS):
                read(rows)
            ended += 1
    return ended


def conversions_while_a_thread_writes(seconds: float) -> int:
    """Return the number of conversions of a list that another thread changes."""
    rows: list[Any] = [[1.0, 2.0]] * 500
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            rows[:] = [[1.0, 2.0]] * 700
            del rows[10:]
            rows.append([3.0])

    thread = threading.Thread(target=write)
    thread.start()
    calls, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for read in (ts.asarray, lambda r: ts.ones((4, 4))[r], lambda r: ts.reshape(ts.ones(4), r)):
            with contextlib.suppress(*ERRORS):
                read(rows)
            calls += 1
    stop.set()
    thread.join()
    return calls


@pytest.mark.parametrize("name", ["all_conversions()", "conversions_while_a_thread_writes(0.4)"])
def test_conversions_of_changing_sequences_end(name):
    function = name.partition("(")[0]
    program = f"from tests.tensora.test_changing_sequences import {function}; print({name})"
    assert answer_of("-X", "faulthandler", "-c", program) > 0


NESTED = st.recursive(
    st.floats(width=32, allow_nan=False) | st.integers(-(2**40), 2**40) | st.booleans(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@given(rows=st.lists(NESTED, max_size=4))
def test_conversions_of_lists_equal_numpy(rows):
    try:
        expected = np.asarray(rows, np.float64)
    except ValueError:
        with pytest.raises(ValueError, match="unequal"):
            ts.asarray(rows, dtype=ts.float64)
        return
    actual = np.asarray(ts.asarray(rows, dtype=ts.float64))
    np.testing.assert_array_equal(actual, expected)


def test_conversion_takes_the_items_at_the_call():
    rows: list[Any] = [1.0, 0, 3.0]
    rows[1] = Number(rows, lambda items: items.extend([9.0] * 1000))
    np.testing.assert_array_equal(np.asarray(_convert(rows)), [1.0, 2.0, 3.0])
    assert len(rows) == 1003


def test_lists_nested_without_end_are_refused():
    rows: list[Any] = []
    rows.append(rows)
    for read in (ts.asarray, ts.tensor, lambda r: ts.ones(3)[r]):
        with pytest.raises(ValueError, match="nested in more than"):
            read(rows)


def test_items_keep_their_values_and_types():
    mixed = [np.float32(1.5), True, 2, ts.tensor(3.0), np.array(4.0), Integer(5)]
    Integer.rows, Integer.change = [], staticmethod(lambda rows: None)
    np.testing.assert_array_equal(np.asarray(_convert(mixed)), [1.5, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert ts.asarray([1 + 2j, 3]).dtype == ts.complex64
    assert ts.asarray([2**60, 1]).tolist() == [2**60, 1]
