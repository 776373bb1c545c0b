"""Budgets under switches, failing files and odd steps: every tensor keeps its own contents."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera import AcceleraError
from accelera.tensora import nn, optim
from tests.children import answer_of

COUNT, SIDE = 6, 200
"""Tensors of a step and the length of their edges: large enough to be computed by fused loops."""


@contextlib.contextmanager
def toggled_fusion() -> Iterator[None]:
    """Another thread enters and leaves blocks that switch fusion for the whole process."""
    stop = threading.Event()

    def toggle() -> None:
        while not stop.is_set():
            with ts.fusion(False):
                pass
            with ts.fusion(True):
                pass

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = ts.get_num_threads()
    ts.set_num_threads(count)
    try:
        yield
    finally:
        ts.set_num_threads(before)


SWITCHES: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "fusion": lambda: ts.fusion(True),
    "no fusion": lambda: ts.fusion(False),
    "fusion of another thread": toggled_fusion,
    "one thread": lambda: threads(1),
    "three threads": lambda: threads(3),
    "recording": ts.Recording,
    "no gradients": ts.no_grad,
}
SWITCH_THREADS = {"one thread": 1, "three threads": 3}
"""Products have other bits with another number of threads."""
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "chain": lambda a, b: ts.exp((a - b) * 0.125) + a * b,
    "where": lambda a, b: ts.where(a > b, a, b * 2.0),
    "cast": lambda a, b: (a.astype(ts.float64) * b.astype(ts.float64)).astype(ts.float32),
    "in place": lambda a, b: in_place(a, b),
    "product": lambda a, b: a @ b,
    "rows": lambda a, b: ts.sum(a * b, axis=0),
    "views": lambda a, b: a[10:50].T + b[20:60].T,
}


def in_place(a: Any, b: Any) -> Any:
    c = a * 2.0
    c += b
    c[3:5] = b[7:9]
    return c


def pairs(operation: Callable[[Any, Any], Any]) -> list[Any]:
    """Combine each pair of tensors whose values are a function of their number."""
    base = ts.reshape(ts.arange(SIDE * SIDE, dtype=ts.float32), (SIDE, SIDE)) / float(SIDE * SIDE)
    tensors = [base + float(number) for number in range(COUNT)]
    return [np.asarray(operation(a, b)).copy() for a, b in itertools.product(tensors, tensors)]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_budget_has_the_bits_of_a_free_step(switch: str, operation: str) -> None:
    with threads(SWITCH_THREADS.get(switch, ts.get_num_threads())):
        expected = pairs(OPERATIONS[operation])
    for blocks in (5, 8):
        budget = ts.budget(ts.memory_stats().live_bytes + blocks * 4 * SIDE * SIDE + 4096)
        for _ in range(2):
            with contextlib.suppress(MemoryError), budget, SWITCHES[switch]():
                for found, wanted in zip(pairs(OPERATIONS[operation]), expected, strict=True):
                    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("switch", SWITCHES)
def test_fusion_inside_a_step_has_the_bits_of_a_free_step(switch: str) -> None:
    expected = pairs(OPERATIONS["chain"])
    budget = ts.budget(ts.memory_stats().live_bytes + 5 * 4 * SIDE * SIDE + 4096)
    for _ in range(3):
        with budget, SWITCHES[switch](), ts.fusion(True):
            for found, wanted in zip(pairs(OPERATIONS["chain"]), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)


def test_memory_error_inside_a_step_ends_its_operation() -> None:
    budget = ts.budget(ts.memory_stats().live_bytes + (1 << 20))
    x = ts.ones((100, 100))
    for make in (lambda: ts.empty((4000, 4000)), lambda: ts.arange(5e6), lambda: ts.ones((3000, 3000))):
        with budget:
            for _ in range(3):
                with pytest.raises(MemoryError):
                    make()
            parts = [x * float(number) for number in range(60)]
            assert [float(part[3, 4]) for part in parts] == [float(number) for number in range(60)]


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda x, w: None,
    "read": lambda x, w: (x[3, 4].item(), x.tolist()),
    "view": lambda x, w: x[2:9].T,
    "gradient": lambda x, w: setattr(w, "grad", None),
    "empty": lambda x, w: ts.empty((0, 3)),
    "scalar": lambda x, w: float(x[0, 0]),
}


@pytest.mark.parametrize("name", STEPS)
def test_step_without_operations_changes_nothing(name: str) -> None:
    x, w = ts.ones((50, 60)), ts.full((60, 60), 0.1).requires_grad_()

    def train() -> None:
        ts.tanh(x @ w).sum().backward()
        w.grad = None

    budget = ts.budget(ts.memory_stats().live_bytes + (8 << 20))
    for step in (lambda: STEPS[name](x, w), train, train, lambda: STEPS[name](x, w), train):
        with budget:
            step()
    assert float(x[3, 4]) == 1


def trained(number_of: Callable[[int], Any], layers: bool = False) -> tuple[int, int]:
    """Return how many of 14 calls with a number as argument follow a plan, and the number of plans."""
    ts.random.manual_seed(1)
    model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(64, 64), nn.SiLU())])
    optimizer, x = optim.AdamW(model.parameters(), lr=1e-3), ts.random.randn(300, 64)

    def train(x: Any, options: Any) -> float:
        optimizer.zero_grad()
        value = options["scale"][0] if isinstance(options, dict) else options
        y = x
        for _ in range(int(value) % 3 + 1 if layers else 1):
            y = model(y)
        loss = (y * (1.0 if layers else float(np.real(value)))).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    budget = ts.budget(ts.memory_stats().live_bytes + (3 << 20))
    step, count = budget(train), 0
    for index in range(14):
        step(x, number_of(index))
        count += budget.report.followed
    return count, len(budget._plans)


NUMBERS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i + 1,
    "float": lambda i: 1.0 + i / 7,
    "numpy": lambda i: np.float32(1 + i / 7),
    "nested": lambda i: {"scale": [1.0 + i, "name"]},
    "tensor": lambda i: ts.asarray(1.0 + i),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_plan_does_not_depend_on_the_value_of_a_number(kind: str) -> None:
    followed, plans = trained(NUMBERS[kind])
    assert (followed, plans) == trained(lambda _: NUMBERS[kind](2))
    assert followed >= 11


def test_number_that_decides_the_operations_gets_its_own_plans() -> None:
    followed, plans = trained(lambda i: i % 3, layers=True)
    assert followed >= 4
    assert plans <= 5


FAILING_CALLS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
static int left = -1;
void fail_after(int calls) { left = calls; }
static int fails(void) { return left >= 0 && left-- == 0; }
ssize_t pread(int file, void *data, size_t count, off_t offset) {
    static ssize_t (*call)(int, void *, size_t, off_t);
    if (!call) call = dlsym(RTLD_NEXT, "pread");
    if (fails()) { errno = EIO; return -1; }
    return call(file, data, count, offset);
}
ssize_t pread64(int file, void *data, size_t count, off_t offset) { return pread(file, data, count, offset); }
ssize_t pwrite(int file, const void *data, size_t count, off_t offset) {
    static ssize_t (*call)(int, const void *, size_t, off_t);
    if (!call) call = dlsym(RTLD_NEXT, "pwrite");
    if (fails()) { errno = ENOSPC; return -1; }
    return call(file, data, count, offset);
}
ssize_t pwrite64(int file, const void *data, size_t count, off_t offset) {
    return pwrite(file, data, count, offset);
}
"""


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("failing")
    (folder / "failing.c").write_text(FAILING_CALLS)
    library = folder / "failing.so"
    command = [compiler, "-shared", "-fPIC", "-O1", str(folder / "failing.c"), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize("kind", ["step", "training"])
def test_failed_read_or_write_never_gives_other_contents(failing_calls: Path, kind: str) -> None:
    outcome = answer_of(
        "-m", "tests.tensora.test_budget_safety", kind, environment={"LD_PRELOAD": str(failing_calls)}
    )
    assert outcome["failures"] >= 3, "no call of the spill file failed"
    assert outcome["wrong"] == []


def plain_step(values: list[Any]) -> Any:
    total = ts.zeros((SIDE, SIDE))
    for value in (*values, *reversed(values)):
        total = total + value * 2.0
    return total


def failing_step(values: list[Any], budget: Any) -> None:
    with budget:
        plain_step(values)
        [value.tolist() for value in values]


def failing_training(values: list[Any], budget: Any) -> None:
    weights = [value.requires_grad_() for value in values]
    with budget:
        y = ts.ones((SIDE, SIDE))
        for weight in weights:
            y = ts.tanh(y @ weight * 0.001)
        y.sum().backward()
        for weight in weights:
            weight.grad = None


def wrong_values(values: list[Any], expected: list[np.ndarray]) -> list[str]:
    """Return the tensors that read as other numbers; each may raise, but then again until it has its own."""
    wrong = []
    for number, (value, wanted) in enumerate(zip(values, expected, strict=True)):
        for _ in range(2):
            try:
                if not np.array_equal(np.asarray(value.detach()), wanted):
                    wrong.append(f"tensor {number}")
            except (AcceleraError, MemoryError):
                continue
    return wrong


def main(kind: str) -> None:
    library = ctypes.CDLL(None)
    run = {"step": failing_step, "training": failing_training}[kind]
    failures, wrong = 0, []
    for calls in range(60):
        values = [ts.full((SIDE, SIDE), float(number + 1)) for number in range(COUNT)]
        expected = [np.asarray(value).copy() for value in values]
        blocks = 5 if kind == "step" else 12
        budget = ts.budget(ts.memory_stats().live_bytes + blocks * 4 * SIDE * SIDE)
        with budget:
            values = [value + 0.0 for value in values]
        library.fail_after(calls)
        try:
            for _ in range(2):
                run(values, budget)
        except (AcceleraError, MemoryError):
            failures += 1
        wrong += [f"after {calls} calls: {name}" for name in wrong_values(values, expected)]
        library.fail_after(-1)
        wrong += [f"after {calls} calls, later: {name}" for name in wrong_values(values, expected)]
        del values
    print(json.dumps({"failures": failures, "wrong": wrong[:5]}))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
