"""A child of a process that forks during a batch runs batches, and its libraries have all their threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.architecture.repository import run_python

PROGRAM = """
import json, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np, threadpoolctl
if "scipy" in sys.argv:
    import scipy.linalg
from accelera.execution import StrategyManager

manager = StrategyManager.cpu_only()

def blas_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    pools = threadpoolctl.threadpool_info()
    return max(pool["num_threads"] for pool in pools if pool["user_api"] == "blas")

def run_child(before):
    outputs = StrategyManager.cpu_only().execute(range(50), abs).outputs
    os._exit(1 if outputs != list(range(50)) else 2 if blas_threads() != before else 0)

def outcome_of_fork(before):
    child = os.fork()
    if child == 0:
        run_child(before)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return ["right", "wrong", "fewer threads"][os.waitstatus_to_exitcode(status)]
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"

before, stop = blas_threads(), threading.Event()

def work():
    while not stop.is_set():
        manager.execute(range(40), lambda task: time.sleep(1e-4))

threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
outcomes = []
for _ in range(25):
    time.sleep(0.01)
    outcomes.append(outcome_of_fork(before))
stop.set()
for thread in threads:
    thread.join(20)
print(json.dumps({"outcomes": sorted(set(outcomes)), "after": blas_threads() == before}))
"""


@pytest.mark.parametrize("library", ["numpy", "scipy"])
def test_children_of_forks_during_batches(library: str, tmp_path: Path) -> None:
    ran = run_python("-c", PROGRAM, library, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["outcomes"] == ["right"]
    assert report["after"]


ORDERS = """
import os, signal, sys, threading, time
from accelera._fork_locks import ForkSafeLock

locks = [ForkSafeLock() for _ in range(3)]
stop = threading.Event()
state = [0, 0]

def change(order):
    while not stop.is_set():
        with order[0]:
            time.sleep(2e-4)
            with order[1]:
                state[0] += 1
                time.sleep(2e-4)
                state[1] += 1

threads = [threading.Thread(target=change, args=(order,), daemon=True)
           for order in (locks[:2], locks[1:], locks[::2])]
for thread in threads:
    thread.start()
bad = 0
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits for a lock
        for lock in locks:
            with lock:
                pass
        os._exit(0 if state[0] == state[1] else 1)
    bad += os.waitpid(child, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join(10)
print(bad, sum(thread.is_alive() for thread in threads))
"""


def test_no_other_thread_holds_a_lock_during_a_fork(tmp_path: Path) -> None:
    """Three threads nest the locks in different orders, and change the protected state in two steps."""
    ran = run_python("-c", ORDERS, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["0", "0"]
