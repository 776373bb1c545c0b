"""Signals, forks and a limit of processes while the threads of operations are busy."""

from __future__ import annotations

import os

import pytest

from tests.children import answer_of

SIGNALS = """
import json, signal, threading, time
import accelera.tensora as ts
linalg = ts.linalg
ts.set_num_threads(2)
x, a, long = ts.ones((400_000,)), ts.random.rand(160, 200), ts.random.rand(12_000_000)
square = a[:, :160]
handlers = {
    "svd": lambda: linalg.svd(a),
    "qr": lambda: linalg.qr(a),
    "solve": lambda: linalg.solve(square, square),
    "product": lambda: a @ a.T,
    "elements": lambda: ts.exp(x),
}
calls = dict.fromkeys(handlers, 0)

def handle(number, frame):
    for name, call in handlers.items():
        call()
        calls[name] += 1
    signal.setitimer(signal.ITIMER_REAL, 0.03)  # not repeated: handlers that take longer would nest

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01)
end = time.monotonic() + 30
while min(calls.values()) < 5 and time.monotonic() < end:
    %s
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps(calls))
"""


@pytest.mark.parametrize(
    "work",
    ["linalg.svd(a)", "ts.exp(x * 2.0)", "a @ a.T", "linalg.eigh(a @ a.T)", "ts.lgamma(long)[0].item()"],
)
def test_signal_handler_may_compute_during(work: str) -> None:
    calls = answer_of("-c", SIGNALS % work)
    assert min(calls.values()) >= 2


FORKS = """
import json, os, threading
import accelera.tensora as ts
a = ts.random.rand(60, 60)

def work():
    while True:
        %s

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
codes = []
for _ in range(12):
    child = os.fork()
    if child == 0:
        os._exit(0 if float(ts.sum(ts.ones((100_000,)))) == 100_000 and (a @ a).shape == (60, 60) else 1)
    codes.append(os.waitpid(child, 0)[1])
print(json.dumps(codes), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("work", ["ts.linalg.svd(a)", "ts.linalg.eigh(a @ a.T); ts.ones((90_000,)) * 2.0"])
def test_fork_returns_during(work: str) -> None:
    assert answer_of("-c", FORKS % work) == [0] * 12


LIMIT = """
import json, os, resource
import accelera.tensora as ts
os.setgid(64123)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.setuid(64123)
ts.set_num_threads(6)
x = ts.ones((600_000,))
sums = [float(ts.sum(ts.exp(x * 0.0) + x)) for _ in range(30)]
product = float(ts.sum(ts.ones((300, 300)) @ ts.ones((300, 300))))
print(json.dumps([sums == [1_200_000.0] * 30, product, ts.get_num_threads()]))
"""


def test_pool_works_on_without_further_threads() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root: a limit of processes does not hold for the user who has many")
    right, product, threads = answer_of("-c", LIMIT)
    assert right
    assert product == 300**3
    assert threads == 1
