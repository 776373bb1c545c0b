"""Deferred elementwise operations: the values of operations one after the other, and what they save."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from tests.threads import run_in_threads

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
N = 1 << 17
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def fusion() -> Iterator[None]:
    """Large results wait, as they do by default; these tests need not run both ways."""
    with ts.fusion(True):
        yield


def gelu(x: Any, tanh: Callable[[Any], Any]) -> Any:
    return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def peak_above(work: Callable[[], Any]) -> int:
    """Bytes that tensors held at most during the work, above those before."""
    ts.reset_peak()
    before = ts.memory_stats().live_bytes
    kept = work()
    del kept
    return int(ts.memory_stats().peak_bytes - before)


# --- random programs --------------------------------------------------------------------------------------

FLOATS = (ts.float32, ts.float64)
SHAPES = [(6, 7), (1, 7), (6, 1), (7,), ()]
UNARY = ["exp", "negative", "tanh", "square", "abs", "isfinite"]
BINARY = ["add", "subtract", "multiply", "maximum", "less"]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Steps of a program on a growing list of tensors, with numbers that choose among them."""
    steps = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(
            st.sampled_from(
                ["unary", "binary", "where", "cast", "write", "add to", "view", "sum", "forget", "lend"]
            )
        )
        name = draw(st.sampled_from(UNARY if kind == "unary" else BINARY))
        steps.append((kind, name, *(draw(st.integers(0, 1000)) for _ in range(3))))
    return steps


def fits(*tensors: Any) -> bool:
    """Whether the tensors broadcast to one shape."""
    try:
        np.broadcast_shapes(*(each.shape for each in tensors))
    except ValueError:
        return False
    return True


def carried_out(steps: list[tuple[Any, ...]]) -> list[Any]:
    """Arrays of what the program has made, those that it did not forget."""
    made = [
        ts.asarray(np.random.default_rng(i).uniform(-1, 1, SHAPES[i]), copy=True) for i in range(len(SHAPES))
    ]
    for kind, name, *numbers in steps:
        a, b, c = (made[number % len(made)] for number in numbers)
        if kind == "unary":
            made.append(getattr(ts, name)(ts.astype(a, ts.float64)))
        elif kind == "binary" and fits(a, b):
            made.append(getattr(ts, name)(ts.astype(a, ts.float64), b))
        elif kind == "where" and fits(a, b, c):
            made.append(ts.where(ts.astype(a, ts.bool), b, c))
        elif kind == "cast":
            made.append(ts.astype(a, [ts.float32, ts.float64, ts.int32, ts.bool][numbers[1] % 4]))
        elif kind == "write" and a.ndim:
            a[0] = b.sum()
        elif kind == "add to" and a.shape == (6, 7) and fits(a, b) and a.dtype in FLOATS:
            a += ts.astype(b, a.dtype)
        elif kind == "view" and a.ndim == 2:
            made.append(a[::-1, numbers[1] % a.shape[1] :])
        elif kind == "sum":
            made.append(ts.sum(ts.astype(a, ts.float64), axis=-1 if a.ndim else None))
        elif kind == "forget" and len(made) > 3:
            del made[numbers[0] % len(made)]
        elif kind == "lend":
            array = a.numpy()
            array[...] = 1
        made = [each for each in made if each.size]
    return [np.array(each.numpy()) for each in made]


@QUICK
@given(programs())
def test_a_program_gives_the_same_bits(steps: list[tuple[Any, ...]]) -> None:
    with ts.fusion(False), np.errstate(all="ignore"):
        expected = carried_out(steps)
    with ts.fusion(True, least=1):
        found = carried_out(steps)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# --- order ------------------------------------------------------------------------------------------------


def test_an_input_that_is_written_later_was_read_before() -> None:
    x = ts.ones(N)
    y = x * 2
    z = y + x
    x += 1
    x[: N // 2] = 7
    assert ts.all(y == 2)
    assert ts.all(z == 3)


def test_a_result_that_is_written_later_was_read_before() -> None:
    x = ts.ones(N)
    y = x * 2
    z = y + 1
    y += 5
    assert ts.all(z == 3)
    assert ts.all(y == 7)


def test_memory_that_is_lent_is_read_at_once() -> None:
    array = np.ones(N)
    x = ts.asarray(array)  # shares the memory
    y = x * 2
    array[...] = 5
    assert ts.all(y == 2)
    own = ts.ones(N)
    z = own * 2
    own.numpy()[...] = 5
    assert ts.all(z == 2)
    w = own * 2
    own.numpy()[...] = 6
    assert ts.all(w == 10)


def test_errors_come_with_the_call() -> None:
    with pytest.raises(ValueError, match="do not broadcast"):
        ts.ones(N) + ts.ones(N - 1)
    with pytest.raises(TypeError, match="not defined for"):
        ts.bitwise_and(ts.ones(N), ts.ones(N))


def test_a_long_chain_and_shared_results() -> None:
    x = ts.asarray(RANDOM.uniform(0.99, 1.01, N), copy=True)
    y, expected = x, x.numpy().copy()
    for _ in range(200):
        y = y * y * 0.5 + 0.5
        expected = expected * expected * 0.5 + 0.5
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-13)


def test_a_result_of_every_layout_of_inputs() -> None:
    a = RANDOM.normal(size=(300, 400))
    x = ts.asarray(a, copy=True)
    row, column, number = ts.asarray(a[0], copy=True), ts.asarray(a[:, :1], copy=True), ts.asarray(2.0)
    found = ts.exp(x.T + column.T) * row[:300] - x[::-1, ::-1].T / number + ts.reshape(row, (400, 1))
    expected = np.exp(a.T + a[:, :1].T) * a[0][:300] - a[::-1, ::-1].T / 2 + a[0].reshape(400, 1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)


def test_threads_that_need_the_same_result() -> None:
    for _ in range(20):
        x = ts.ones(N)
        y = gelu(x, ts.tanh)
        found: list[float] = []
        run_in_threads(*[lambda y=y, found=found: found.append(y[3].item())] * 4)
        assert len(set(found)) == 1
        y += 1  # all of them have the same memory
        assert y[3].item() == found[0] + 1


# --- what it saves ----------------------------------------------------------------------------------------


def test_a_chain_takes_the_memory_of_its_result() -> None:
    x = ts.ones(N)
    assert peak_above(lambda: gelu(x, ts.tanh)[0].item()) <= 1.25 * x.nbytes
    with ts.fusion(False):
        assert peak_above(lambda: gelu(x, ts.tanh)[0].item()) >= 3 * x.nbytes


def test_a_recorded_chain_keeps_its_input_only() -> None:
    x = ts.asarray(RANDOM.normal(size=N), copy=True)
    x.requires_grad = True
    weight = ts.ones(N, dtype=ts.float64)

    def step() -> None:
        x.grad = None
        gelu(x, ts.tanh).backward(weight)

    with ts.fusion(False):
        eager = peak_above(step)
        expected = x.grad.numpy().copy()
    assert peak_above(step) <= 2.5 * x.nbytes
    assert eager >= 8 * x.nbytes
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-14, atol=1e-14)


def test_what_would_keep_more_than_it_takes_is_stored() -> None:
    """The saved result of exp would keep both of its inputs, which nobody else holds."""
    weight = ts.ones(N)
    weight.requires_grad = True
    before = ts.memory_stats().live_bytes
    y = ts.exp(ts.full(N, 0.5) * ts.full(N, 0.25)) * weight
    assert y[0].item() == pytest.approx(np.exp(0.125))
    assert ts.memory_stats().live_bytes - before <= 2.5 * weight.nbytes


def test_a_result_that_nobody_reads_is_not_computed() -> None:
    x = ts.ones(N)
    assert peak_above(lambda: ts.exp(x)) == 0


def test_a_limit_that_is_too_small_is_told_when_the_result_is_needed() -> None:
    x = ts.ones(N)
    y = x + 1
    ts.set_memory_limit(ts.memory_stats().live_bytes + 1000)
    try:
        with pytest.raises(MemoryError, match="the smallest limit that would do"):
            y[0].item()
    finally:
        ts.set_memory_limit(None)
    assert y[0].item() == 2


def test_the_switch() -> None:
    with pytest.raises(ValueError, match="least=0"):
        ts.fusion(least=0)
    with ts.fusion(False):
        x = ts.ones(N)
        assert peak_above(lambda: ts.exp(x)) >= x.nbytes


def test_a_running_sum_keeps_few_of_its_terms() -> None:
    def running_sum() -> ts.Tensor:
        total = ts.zeros(N)
        for _ in range(60):
            total = total + ts.ones(N)
        return total

    assert peak_above(lambda: running_sum()[0].item()) <= 8 * ts.zeros(N).nbytes


def test_gradients_that_are_added_up_do_not_wait() -> None:
    """A sum that waited would keep the gradients of all passes."""
    x = ts.ones(N)
    x.requires_grad = True

    def passes() -> None:
        for _ in range(12):
            (x * ts.full(N, 2.0)).backward(ts.ones(N))

    assert peak_above(passes) <= 5 * x.nbytes
    assert x.grad[0].item() == 24


# --- signals ----------------------------------------------------------------------------------------------

HANDLER_OF_A_SIGNAL = """
import signal, threading, time
import numpy as np
import accelera.tensora as ts

# The handler needs a result that waits, while another thread runs a program and needs the interpreter.
large = ts.asarray(np.random.default_rng(0).random((64, 1 << 17)), copy=True)
x = ts.ones(1 << 22)
waiting, hits, done = [x + 1 for _ in range(2000)], [], threading.Event()

def programs():
    while not done.is_set():
        y = x
        for _ in range(30):
            y = ts.exp(y * 0.0)
        y[0].item()

def handler(number, frame):
    hits.append(waiting.pop()[0].item())

signal.signal(signal.SIGALRM, handler)
other = threading.Thread(target=programs)
other.start()
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
end = time.monotonic() + 3
while time.monotonic() < end:
    ts.sort(large)
signal.setitimer(signal.ITIMER_REAL, 0)
done.set()
other.join()
assert hits and set(hits) == {2.0}
"""


def test_a_signal_handler_may_need_what_waits() -> None:
    subprocess.run([sys.executable, "-c", HANDLER_OF_A_SIGNAL], check=True, timeout=60)
