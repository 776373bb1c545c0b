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
