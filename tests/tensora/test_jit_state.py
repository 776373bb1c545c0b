"""State that changes between calls of a captured function: the results are those of the function itself."""

from __future__ import annotations

import decimal
import sys
import threading

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import nn
from tests.tensora import jit_state_kinds as kinds

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)


def results_of(kind, wrap):
    made = kinds.KINDS[kind]
    function, change = made() if callable(made) else (made[0](), made[1])
    call, results = wrap(function), []
    for k in range(6):
        change(function, k)
        ts.random.manual_seed(k)
        results.append(np.array(call(kinds.values(kinds.ROWS, kinds.COLUMNS, seed=k)).detach()))
    return results


@pytest.fixture
def unchanged_globals(monkeypatch):
    monkeypatch.setattr(kinds, "FACTOR", 1.0)
    monkeypatch.setattr(kinds, "helper", kinds.helper)
    monkeypatch.setattr(kinds.SETTINGS, "k", 1.0)
    monkeypatch.setattr(kinds.SETTINGS.inner, "k", 1.0)
    monkeypatch.setenv("ACCELERA_TEST_JIT", "1")
    monkeypatch.setitem(kinds.TABLE["a"][1], "b", 2.0)
    kinds.attribute_of_function.__dict__.pop("calls", None)
    monkeypatch.setattr(kinds.with_default, "__code__", kinds.with_default.__code__)
    vars(kinds.EXTRA).clear()
    yield
    ts.set_default_dtype(ts.float32)
    kinds.with_default.__defaults__[0][0] = 1.0
    kinds.with_keyword_default.__kwdefaults__["k"] = None


@pytest.mark.filterwarnings("ignore:.*jit. .* runs as written")
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_state_that_changes_is_followed(kind, unchanged_globals):
    found = []
    for wrap in (lambda function: function, ts.jit):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kinds, "FACTOR", 1.0)
            patch.setattr(kinds, "helper", kinds.helper)
            kinds.attribute_of_function.__dict__.pop("calls", None)
            patch.setattr(kinds.with_default, "__code__", kinds.with_default.__code__)
            patch.setitem(kinds.SHARED, "a", 1.0)
            vars(kinds.EXTRA).clear()
            vars(kinds.EXTRA)["k"] = 1.0
            patch.setattr(kinds.HELD, "k", 1.0)
            with decimal.localcontext():
                found.append(results_of(kind, wrap))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("kind", sorted(set(kinds.KINDS) - kinds.REFUSED))
def test_state_that_stays_is_replayed(kind, unchanged_globals):
    made = kinds.KINDS[kind]
    function = made()[0] if callable(made) else made[0]()
    run = ts.jit(function)
    for _ in range(5):
        run(kinds.values(kinds.ROWS, kinds.COLUMNS))
    n_programs = run._n_programs
    run(kinds.values(kinds.ROWS, kinds.COLUMNS))
    assert run._n_programs == n_programs <= 2
    assert run.report(kinds.values(kinds.ROWS, kinds.COLUMNS)).operations >= 0


@pytest.mark.parametrize("kind", sorted(kinds.REFUSED - {"cached property"}))
def test_state_that_cannot_be_guarded_is_named(kind, unchanged_globals):
    made = kinds.KINDS[kind]
    run = ts.jit(made()[0] if callable(made) else made[0]())
    kinds.LOCAL.k = 1.0
    run(kinds.values(kinds.ROWS, kinds.COLUMNS))
    with pytest.warns(RuntimeWarning, match=r"\[jit\] .* runs as written, because it depends on or changes"):
        run(kinds.values(kinds.ROWS, kinds.COLUMNS))
    with pytest.raises(RuntimeError, match="runs as written with such arguments"):
        run.report(kinds.values(kinds.ROWS, kinds.COLUMNS))


def run_large(body):
    run = ts.jit(body)
    for _ in range(2):
        run(ts.ones(()))
    return run


def test_state_that_is_too_large_to_compare_is_named():
    arrays = [np.zeros(1 << 20) for _ in range(3)]
    with pytest.warns(RuntimeWarning, match=r"arrays of more than 16777216 bytes, among them arrays\[0\]"):
        run_large(lambda x: x * float(arrays[0][0]))
    numbers = [[k] for k in range(100_001)]
    with pytest.warns(RuntimeWarning, match="more than 100000 values, among them numbers"):
        run_large(lambda x: x * numbers[0][0])


def test_state_guards_of_threads_and_failed_calls():
    module = nn.Linear(4, 4)
    run, found = ts.jit(module), []

    def work():
        x = kinds.values(3, 4)
        found.extend(
            np.array_equal(np.array(run(x).detach()), np.array(module(x).detach())) for _ in range(20)
        )

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found)
    assert len(found) == 60
    with pytest.raises(ValueError, match=r"matmul|linear|shape"):
        run(kinds.values(3, 5))
    assert sys.getprofile() is None
