"""Layouts and shared memory of arguments of captured functions: replays read and write as the function."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)

SIDE = 6

VIEWS = {
    "whole": lambda x: x,
    "rows": lambda x: x[1:4, :3],
    "other rows": lambda x: x[2:5, :3],
    "apart": lambda x: x[3:6, 3:],
    "every second": lambda x: x[::2, ::2],
    "every second, later": lambda x: x[1::2, 1::2],
    "reversed": lambda x: x[::-1, ::-1][:3, :3],
    "reversed rows": lambda x: x[4:1:-1, :3],
    "transposed": lambda x: ts.permute_dims(x, (1, 0))[:3, 1:4],
    "column": lambda x: x[:3, 2:3],
    "row": lambda x: x[2:3, 1:4],
    "broadcast": lambda x: ts.broadcast_to(x[2:3, :3], (3, 3)),
}


def read(a, b):
    return (a * 2 + b, ts.sum(a, axis=0), ts.exp(b * 0.1))


def add_in_place(a, b):
    a += b
    return (a * 2, b - 1)


def read_then_write(a, b):
    before = b + 10
    a *= 2
    return (before, b + 10, a)


def copy_over(a, b):
    a[...] = b * 4.0
    return (a - b,)


def write_both(a, b):
    a += 1
    b *= 3
    a -= b
    return (a, b + a)


def write_part(a, b):
    a[0] = 7
    b[-1] = a[0] * 2
    return (a * b,)


def return_views(a, b):
    a *= 2
    return (a[1:], a, b[:1], a.T)


FUNCTIONS = [read, add_in_place, read_then_write, copy_over, write_both, write_part, return_views]


def outcome_of(call, function_of_views, seed):
    """Results of a call, the memory of the arguments after it, and after a write to each result."""
    x = ts.asarray(np.random.default_rng(seed).normal(size=(SIDE, SIDE)))
    try:
        results = call(*function_of_views(x))
    except ValueError as error:  # a write to elements that share their place
        return [str(error).encode()]
    found = [np.array(each) for each in results] + [np.array(x)]
    for each in results:
        if each.is_contiguous():
            each += 1
            found.append(np.array(x))
    return found


def check_alike(function, captured, views, seed=0):
    wanted = outcome_of(function, views, seed)
    found = outcome_of(captured, views, seed)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def pair_of_views(first, second):
    return lambda x: (VIEWS[first](x), VIEWS[second](x))


def separate_views(first, second):
    return lambda x: (VIEWS[first](x), VIEWS[second](x + 50))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_that_overlap_give_the_functions_results(function):
    captured = ts.jit(function)
    apart = [np.zeros((3, 3)), np.ones((3, 3))]
    captured(*map(ts.asarray, apart))
    for first, second in itertools.product(VIEWS, VIEWS):
        views = pair_of_views(first, second)
        a, b = views(ts.zeros((SIDE, SIDE)))
        if a.ndim != b.ndim or (a.shape != b.shape and (first == "whole" or second == "whole")):
            continue
        fresh = ts.jit(function)
        for seed in range(3):
            check_alike(function, fresh, views, seed)
        check_alike(function, captured, views)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_of_any_layout_are_read_and_written(function):
    captured = ts.jit(function)
    captured(ts.zeros((3, 3), dtype=ts.float64), ts.ones((3, 3), dtype=ts.float64))
    for first, second in itertools.product(VIEWS, ["rows", "transposed", "reversed", "broadcast"]):
        if VIEWS[first](ts.zeros((SIDE, SIDE))).shape != (3, 3):
            continue
        for seed in range(3):
            check_alike(function, captured, separate_views(first, second), seed)
    assert captured._n_programs > 3


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_from_numpy_that_share_memory(function):
    captured = ts.jit(function)
    for seed in range(3):
        check_alike(function, captured, lambda x: (x[:3, :3], x[3:, 3:]), seed)
        found, wanted = (np.random.default_rng(seed).normal(size=(4, 3)) for _ in range(2))
        for call, memory in ((captured, found), (function, wanted)):
            call(ts.asarray(memory[:3]), ts.asarray(memory[1:]))
        np.testing.assert_array_equal(found, wanted)


def test_arguments_of_several_types_over_one_memory():
    def function(a, b):
        a += 1
        return (b * 2,)

    captured = ts.jit(function)
    for _ in range(3):
        found, wanted = np.arange(6.0), np.arange(6.0)
        results = [
            call(ts.asarray(memory), ts.asarray(memory.view(np.int64)))
            for call, memory in ((captured, found), (function, wanted))
        ]
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(results[0][0], results[1][0])


@pytest.mark.parametrize("order", ["shared first", "shared last"])
def test_an_argument_may_be_memory_of_an_outside_tensor(order):
    def outcome(wrap):
        outside = ts.asarray(np.arange(6.0))

        def function(a):
            before = outside + 10
            a *= 2
            return before, outside + 10, a + ts.sum(outside)

        call, found = wrap(function), []
        arguments = {
            "apart": lambda: ts.ones((3,), dtype=ts.float64),
            "slice": lambda: outside[1:4],
            "part": lambda: outside[:3],
        }
        names = ["slice", "apart", "part", "apart"]
        for name in names if order == "shared first" else ["apart", *names]:
            found += [np.array(each) for each in call(arguments[name]())] + [np.array(outside)]
        return found

    for a, b in zip(outcome(ts.jit), outcome(lambda f: f), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_argument_may_be_memory_that_numpy_shares_with_an_outside_tensor():
    def outcome(wrap):
        memory = np.arange(6.0)
        outside = ts.asarray(memory)

        def function(a):
            before = outside[:3] * 2
            a -= 5
            return before + outside[:3] + a

        call = wrap(function)
        call(ts.zeros((3,), dtype=ts.float64))
        return [np.array(call(ts.asarray(memory[i : i + 3]))) for i in (0, 2, 3, 0)] + [memory]

    for a, b in zip(outcome(ts.jit), outcome(lambda f: f), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_argument_may_be_the_gradient_of_a_parameter():
    def outcome(wrap):
        p = ts.ones((3,))
        p.requires_grad = True

        def function(g):
            g *= 2
            return g + p.grad

        call, found = wrap(function), []
        for k in range(4):
            p.grad = ts.full((3,), k + 1.0)
            found.append(np.array(call(p.grad if k % 2 else ts.ones((3,)))))
            found.append(np.array(p.grad))
        return found

    for a, b in zip(outcome(ts.jit), outcome(lambda f: f), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_tensor_given_twice_differs_from_a_view_of_it():
    def function(a, b):
        a += 1
        return (a, b)

    captured = ts.jit(function)
    x = ts.zeros((3,))
    for pair in ((x, x), (x, x[:]), (x, x)):
        a, b = captured(*pair)
        assert a is pair[0]
        assert b is pair[1]
    np.testing.assert_array_equal(np.asarray(x), [3, 3, 3])


views = st.tuples(
    st.integers(0, SIDE - 1), st.sampled_from([-2, -1, 1, 2]), st.integers(0, SIDE - 1), st.booleans()
)


def view_of(x, view):
    start, step, column, is_transposed = view
    part = x[start::step, column:]
    return part.T if is_transposed else part


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    views=st.lists(views, min_size=2, max_size=3),
    function=st.sampled_from(FUNCTIONS[:3]),
    seed=st.integers(0, 3),
)
def test_any_views_of_one_tensor(views, function, seed):
    x = ts.asarray(np.random.default_rng(seed).normal(size=(SIDE, SIDE)))
    parts = [view_of(x, each) for each in views]
    rows, columns = (min(part.shape[axis] for part in parts) for axis in range(2))

    def made(x):
        return [view_of(x, each)[:rows, :columns] for each in views[:2]]

    captured = ts.jit(function)
    for number in range(3):
        check_alike(function, captured, made, number)


@pytest.mark.filterwarnings("ignore:.*jit. .* runs as written")
@pytest.mark.parametrize("are_computed", [False, True])
def test_containers_that_a_function_writes_to_are_those_of_the_caller(are_computed):
    def function(table, parts):
        table["out"] = table["x"] * 2
        parts.append(table["x"])
        return table["out"]

    captured = ts.jit(function)
    for _ in range(4):
        x = ts.ones((3,))
        x.requires_grad = are_computed
        table, parts = {"x": x * 1.0}, []
        out = captured(table, parts)
        assert table["out"] is out
        assert len(parts) == 1
        assert parts[0] is table["x"]


def test_objects_as_arguments_are_followed():
    class Options:
        k = 1.0

        def __eq__(self, other):
            return isinstance(other, Options)

        def __hash__(self):
            return 0

    captured, options, others = ts.jit(lambda x, options: x * options.k), Options(), Options()
    for k in range(4):
        options.k, others.k = float(k), float(k + 10)
        assert float(captured(ts.ones(()), options)) == k
        assert float(captured(ts.ones(()), others)) == k + 10


class Scale:
    """An argument without a dictionary of attributes."""

    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


class EqualScale(Scale):
    __slots__ = ()

    def __eq__(self, other):
        return isinstance(other, EqualScale)

    def __hash__(self):
        return 7


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, -0.0),
        (np.float32(-0.0), np.float32(0.0)),
        ((1.0, 0.0), (1.0, -0.0)),
        ({"k": -0.0}, {"k": 0.0}),
    ],
)
def test_zeros_of_another_sign_are_other_arguments(arguments, fusion):
    def sign_of(x, k):
        last = k["k"] if isinstance(k, dict) else k[-1] if isinstance(k, tuple) else k
        return ts.atan2(x * 0 + float(last), x * 0 - 1)

    captured, x = ts.jit(sign_of), ts.ones((2,))
    for each in (*arguments, *arguments):
        np.testing.assert_array_equal(captured(x, each).numpy(), sign_of(x, each).numpy())


@pytest.mark.parametrize("kind", [Scale, EqualScale])
@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: (each,), lambda each: frozenset([each])])
def test_arguments_with_slots_may_change_and_may_be_equal(kind, wrap, fusion):
    def scaled(x, argument):
        (scale,) = argument if isinstance(argument, (tuple, frozenset)) else (argument,)
        return x * scale.k

    captured, x, scale = ts.jit(scaled), ts.ones((2,)), kind(1.0)
    for k in (1.0, 1.0, 5.0):
        scale.k = k
        argument = wrap(scale)
        np.testing.assert_array_equal(captured(x, argument).numpy(), scaled(x, argument).numpy())
    other = wrap(kind(9.0))
    np.testing.assert_array_equal(captured(x, other).numpy(), scaled(x, other).numpy())
