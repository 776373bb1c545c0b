"""Threads, forks and signals: who runs during long work, a fork's own pool, Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from accelera.tensora.core import native

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
from accelera.tensora.core import native
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program], capture_output=True, text=True, timeout=840, check=False
    )


def test_other_threads_run_during_long_work() -> None:
    """Without the lock given up, the thread would not count while the product runs."""
    a = native.asarray(np.ones((1200, 1200), np.float32))
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.0005)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread that keeps the lock is not asked for it
    try:
        thread = threading.Thread(target=count)
        thread.start()
        before = counted
        for _ in range(20):
            native.matmul(a, a)
        during = counted - before
        done.set()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert during > 0


def test_a_forked_process_computes() -> None:
    """After the pool's threads were used, which the child does not have."""
    done = run(
        """
x = native.asarray(np.ones(1 << 20))
assert native.sum(x).item() == 1 << 20
a = native.asarray(np.ones((600, 600)))
native.matmul(a, a)
child = os.fork()
if child == 0:
    ok = native.sum(x + x).item() == 2 << 20 and native.matmul(a, a)[0, 0].item() == 600
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("shape", "work"),
    [("(12000, 12000)", "native.matmul(x, x)"), ("(1 << 27,)", "native.digamma(x)[0].item()")],
)
def test_an_interrupt_ends_a_long_operation(shape: str, work: str) -> None:
    """The operation takes many seconds; the program ends long before it."""
    done = run(
        f"""
x = native.full({shape}, 1.0, native.dtype.float32)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    {work}
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert done.stdout == "interrupted\n", done.stderr


def test_threads_that_multiply_and_invert_at_once_do_not_hang() -> None:
    """OpenBLAS's parallel sections wait for each other for ever when they overlap."""
    done = run(
        """
from accelera.tensora import linalg
m = native.asarray(np.random.default_rng(0).normal(size=(700, 700)))
expected = linalg.inv(m).tolist()
found = []

def work():
    for _ in range(3):
        linalg.svdvals(m[:100])
        native.matmul(m, m)
        found.append(linalg.inv(m).tolist() == expected)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), all(found))
"""
    )
    assert done.stdout == "12 True\n", done.stderr


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = native.asarray(np.random.default_rng(0).normal(size=(257, 1025)).astype(np.float32))
    before = native.thread_count()
    found = []
    try:
        for n in (1, 2, 3):
            native.set_thread_count(n)
            found.append([native.sum(x).item(), native.sum(x, 0).tolist(), native.sum(x, 1).tolist()])
    finally:
        native.set_thread_count(before)
    assert found[0] == found[1] == found[2]


def test_an_interrupt_ends_a_long_sort() -> None:
    done = run(
        """
import accelera.tensora as ts
x = ts.random.rand(20_000_000)
pressed = []
def press():
    pressed.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, press).start()
try:
    ts.sort(x)
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.parametrize(
    ("shape", "work"),
    [
        ("(1200, 1200)", "ts.linalg.svd(x)"),
        ("(2500, 2500)", "ts.linalg.inv(x)"),
        ("(4000, 4000)", "ts.matmul(x, x)"),
        ("(20_000_000,)", "ts.sort(x)"),
    ],
)
def test_a_program_may_end_while_a_thread_computes(shape: str, work: str) -> None:
    done = run(
        f"""
import accelera.tensora as ts
x = ts.random.rand(*{shape})
threading.Thread(target=lambda: {work}, daemon=True).start()
time.sleep(0.2)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
