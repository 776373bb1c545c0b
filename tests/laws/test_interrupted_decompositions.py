"""Ctrl-C gives a call of LAPACK up; a handler that raises nothing leaves the result as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.architecture.repository import run_python

PROGRAM = """
import json, os, signal, sys, threading, time
import numpy as np
import accelera.tensora as ts

kind, handler = sys.argv[1:]
ts.random.manual_seed(0)
n = 500
matrix = ts.random.randn(n, n)
work = {
    "svd": lambda: ts.linalg.svd(matrix)[1],
    "eigh": lambda: ts.linalg.eigh(matrix + matrix.T)[0],
    "eigvals": lambda: ts.linalg.eigvals(matrix),
    "inv": lambda: ts.linalg.inv(matrix),
    "complex": lambda: ts.linalg.svdvals(matrix + 1j * matrix.T),
}[kind]
handled = []
if handler == "own":
    signal.signal(signal.SIGINT, lambda *_: handled.append(1))
expected = np.asarray(work())
began = time.perf_counter()
work()
full = time.perf_counter() - began
raised = wrong = 0
for part in range(1, 5):
    timer = threading.Timer(full * part / 5, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while timer.is_alive():
            wrong += not np.array_equal(np.asarray(work()), expected)
        wrong += not np.array_equal(np.asarray(work()), expected)
        time.sleep(0.1)
    except KeyboardInterrupt:
        raised += 1
    timer.join()
    wrong += not np.array_equal(np.asarray(work()), expected)
print(json.dumps({"raised": raised, "wrong": wrong, "handled": len(handled)}))
"""


@pytest.mark.parametrize("kind", ["svd", "eigh", "eigvals", "inv", "complex"])
@pytest.mark.parametrize("handler", ["usual", "own"])
def test_results_after_interrupts(kind: str, handler: str, tmp_path: Path) -> None:
    ran = run_python("-c", PROGRAM, kind, handler, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    counts = json.loads(ran.stdout)
    assert counts["wrong"] == 0
    assert counts["raised"] == (4 if handler == "usual" else 0)
    assert counts["handled"] == (4 if handler == "own" else 0)
