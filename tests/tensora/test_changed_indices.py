"""Indices whose memory changes after the forward pass: gradients of the indices as they were."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional
from tests.children import answer_of

ROWS, COLUMNS = 5, 6
FORWARD = [4, 2, 0, 1]
"""Indices of the forward pass: valid for both axes."""
CHANGED: dict[str, list[int]] = {
    "valid": [0, 3, 1, 1],
    "negative": [-(2**40)] * 4,
    "large": [2**62, 5, 2**31, -7],
    "smallest": [-(2**63)] * 4,
}


def _row(index: Any) -> Any:
    return ts.reshape(index, (1, 4))


def _column(index: Any) -> Any:
    return ts.reshape(index, (4, 1))


def _assigned(x: Any, index: Any) -> Any:
    y = ts.zeros((ROWS, COLUMNS), dtype=ts.float64)
    y[index] = x[:4] * 2.0
    return y * x


def _weights() -> Any:
    return ts.arange(6.0, dtype=ts.float64) + 1.0


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "subscript": lambda x, i: x[i] ** 2,
    "two subscripts": lambda x, i: x[i, i] ** 2,
    "subscript and slice": lambda x, i: x[1:, i] ** 2,
    "assignment": _assigned,
    "take": lambda x, i: ts.take(x, i, axis=1) ** 2,
    "take_along_axis": lambda x, i: ts.take_along_axis(x, _column(i), axis=0) ** 2,
    "gather": lambda x, i: ts.gather(x, _column(i), axis=0) ** 2,
    "index_select": lambda x, i: ts.index_select(x, i, axis=0) ** 2,
    "index_add": lambda x, i: ts.index_add(x, i, x[:4] * 2.0, axis=0) ** 2,
    "index_copy": lambda x, i: ts.index_copy(x, i, x[:4] * 2.0, axis=0) ** 2,
    "index_fill": lambda x, i: ts.index_fill(x, i, 2.0, axis=0) ** 2,
    "index_put": lambda x, i: ts.index_put(x, (i, i), x[0, :4] * 2.0) ** 2,
    "index_put with sums": lambda x, i: ts.index_put(x, (i, i), x[0, :4] * 2.0, accumulate=True) ** 2,
    "index_reduce": lambda x, i: ts.index_reduce(x, i, x[:4] * 2.0, axis=0, reduce="prod") ** 2,
    "put": lambda x, i: ts.put(x, i, x[0, :4] * 2.0) ** 2,
    "scatter": lambda x, i: ts.scatter(x, _row(i), x[:1, :4] * 2.0, axis=0) ** 2,
    "scatter_add": lambda x, i: ts.scatter_add(x, _row(i), x[:1, :4] * 2.0, axis=0) ** 2,
    "scatter_reduce": lambda x, i: ts.scatter_reduce(x, _row(i), x[:1, :4], axis=0, reduce="prod") ** 2,
    "largest of scatter": lambda x, i: ts.scatter_reduce(x, _row(i), x[:1, :4], axis=0, reduce="amax") ** 2,
    "embedding": lambda x, i: functional.embedding(i, x) ** 2,
    "embedding_bag": lambda x, i: functional.embedding_bag(ts.reshape(i, (2, 2)), x) ** 2,
    "nll_loss": lambda x, i: functional.nll_loss(functional.log_softmax(x[:4], dim=1), i),
    "cross_entropy": lambda x, i: functional.cross_entropy(x[:4], i, label_smoothing=0.1),
    "weighted cross_entropy": lambda x, i: functional.cross_entropy(x[:4], i, weight=_weights()),
    "multi_margin_loss": lambda x, i: functional.multi_margin_loss(x[:4], i),
    "max_unpool1d": lambda x, i: (
        functional.max_unpool1d(x[:1, :4], ts.reshape(i, (1, 4)), 2, output_size=(1, 8)) ** 2
    ),
}


class SharedIndex:
    """An index tensor, and the array through which its memory is changed."""

    def __init__(self, way: str, values: list[int]) -> None:
        self.way, self.raw = way, np.array(values)
        self.tensor = ts.tensor(values) if way.startswith(("export", "in place")) else self._import()
        if way == "exported before":
            self.raw = np.asarray(self.tensor)

    def _import(self) -> Any:
        return ts.asarray(self.raw.data, copy=False) if self.way == "buffer" else ts.from_dlpack(self.raw)

    def change(self, values: list[int]) -> None:
        if self.way == "in place":
            self.tensor[...] = ts.tensor(values)
        elif self.way == "exported after":
            np.asarray(self.tensor)[:] = values
        else:
            self.raw[:] = values


WAYS = ["dlpack", "buffer", "exported before", "exported after", "in place"]


def _source() -> Any:
    numbers = np.random.default_rng(7).uniform(0.5, 2.0, (ROWS, COLUMNS))
    return ts.tensor(numbers, dtype=ts.float64).requires_grad_()


def _gradient(name: str, way: str, changed: list[int] | None) -> list[Any] | None:
    """Return the gradient, or None if the backward pass raised an error."""
    x, index = _source(), SharedIndex(way, FORWARD)
    loss = LOSSES[name](x, index.tensor).sum()
    if changed is not None:
        index.change(changed)
    try:
        loss.backward()
    except (RuntimeError, IndexError):
        return None
    return np.asarray(x.grad).tolist()


def all_gradients(name: str, in_budget: bool) -> dict[str, Any]:
    """Gradients of one operation for all ways to change its index, by way and new values."""
    budget = ts.budget(ts.memory_stats().live_bytes + (1 << 20)) if in_budget else None
    gradients: dict[str, Any] = {}
    for way, changed in itertools.product(WAYS, [None, *CHANGED]):
        values = None if changed is None else CHANGED[changed]
        if budget is None:
            gradients[f"{way}, {changed}"] = _gradient(name, way, values)
        else:
            with budget:
                gradients[f"{way}, {changed}"] = _gradient(name, way, values)
    return gradients


def hammered_indices(seconds: float) -> int:
    """Return the number of calls that ended while another thread wrote to the memory of their indices."""
    raw = np.zeros(300_000, np.int64)
    index, x, stop = ts.from_dlpack(raw), ts.arange(1000.0).requires_grad_(), threading.Event()
    valid, invalid = np.full(raw.size, 999), np.full(raw.size, 2**45)

    def write() -> None:
        while not stop.is_set():
            np.copyto(raw, invalid)
            np.copyto(raw, valid)

    thread = threading.Thread(target=write)
    thread.start()
    calls, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        calls += 1
        with contextlib.suppress(IndexError):
            ts.sum(x[index]).backward()
        with contextlib.suppress(IndexError), ts.no_grad():
            ts.scatter_add(x, index, ts.ones(raw.size), axis=0)
    stop.set()
    thread.join()
    return calls


PROGRAM = """
import json, sys
from tests.tensora.test_changed_indices import LOSSES, all_gradients
print(json.dumps({name: all_gradients(name, sys.argv[1] == "budget") for name in LOSSES}))
"""


@pytest.mark.parametrize("memory", ["plain", "budget"])
def test_gradients_use_the_indices_of_the_forward_pass(memory):
    for name, gradients in answer_of("-c", PROGRAM, memory).items():
        expected = gradients["dlpack, None"]
        assert expected is not None, name
        for case, gradient in gradients.items():
            refused = gradient is None and not case.endswith("None")
            assert gradient == expected or refused, (name, case)


def test_indices_that_a_thread_writes_stay_inside_their_memory():
    program = "from tests.tensora.test_changed_indices import hammered_indices; print(hammered_indices(0.5))"
    assert answer_of("-c", program) > 0


@pytest.mark.parametrize("name", ["subscript", "take", "scatter_add", "cross_entropy", "embedding"])
def test_indices_of_another_library_give_gradients(name):
    for changed in CHANGED.values():
        assert _gradient(name, "dlpack", changed) == _gradient(name, "dlpack", None)


def test_second_derivatives_use_the_first_indices():
    x, raw = _source(), np.array(FORWARD)
    (slope,) = ts.autograd.grad((x[ts.from_dlpack(raw)] ** 3).sum(), x, create_graph=True)
    raw[:] = 2**50
    (second,) = ts.autograd.grad(slope.sum(), x)
    expected = np.zeros((ROWS, COLUMNS))
    np.add.at(expected, FORWARD, 6 * np.asarray(x.detach())[FORWARD])
    np.testing.assert_allclose(np.asarray(second), expected)


@settings(deadline=None, max_examples=60)
@given(
    first=st.lists(st.integers(-ROWS, ROWS - 1), min_size=1, max_size=9),
    seed=st.integers(0, 2**32 - 1),
    in_budget=st.booleans(),
)
def test_changed_negative_indices_of_steps(first, seed, in_budget):
    """Negative indices are counted from the front once, also if a budget computes parts of the step again."""
    rng = np.random.default_rng(seed)
    raw, x = np.array(first), _source()
    budget = ts.budget(ts.memory_stats().live_bytes + (1 << 20))

    def step() -> None:
        loss = (x[ts.from_dlpack(raw)] * 3.0).sum()
        raw[:] = rng.integers(-(2**62), 2**62, raw.size)
        loss.backward()

    if in_budget:
        with budget:
            step()
    else:
        step()
    expected = np.zeros((ROWS, COLUMNS))
    np.add.at(expected, first, 3.0)
    np.testing.assert_array_equal(np.asarray(x.grad), expected)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("pool", ["max_pool", "adaptive_max_pool"])
def test_returned_places_of_a_pool_may_be_changed(pool, n):
    numbers = np.random.default_rng(n).permutation(4**n).reshape(1, 1, *[4] * n).astype(np.float64)
    x = ts.tensor(numbers).requires_grad_()
    values, places = getattr(functional, f"{pool}{n}d")(x, 2, return_indices=True)
    np.asarray(places)[:] = 2**40
    ts.sum(values * 3.0).backward()
    expected = np.where(np.isin(numbers, np.asarray(values.detach())), 3.0, 0.0)
    np.testing.assert_array_equal(np.asarray(x.grad), expected)


def test_masks_are_read_in_the_forward_pass():
    raw = np.zeros((64,), bool)
    raw[::3] = True
    x = ts.arange(64.0, dtype=ts.float64).requires_grad_()
    loss = x[ts.from_dlpack(raw)].sum()
    raw[:] = True
    loss.backward()
    assert np.asarray(x.grad).sum() == 22.0
