"""Readers of saved plans, run journals, advice and measured rates."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.engine import MatrixEngine, lazy
from accelera.engine._internal import find_journal, read_journal
from accelera.engine.journal import VERSION, check_journal
from accelera.execution.strategy.history import PerformanceHistory, machine_fingerprint
from accelera.plan._internal import SavedPlan
from accelera.simulator import Advice
from tests.fuzz.harness import fuzz_target, temporary_file

BUDGET = "32MiB"
_A = (np.arange(32 * 24, dtype=np.float32) % 7).reshape(32, 24)
_B = (np.arange(24 * 16, dtype=np.float32) % 5).reshape(24, 16)


@functools.cache
def _engine() -> MatrixEngine:
    return MatrixEngine()


def _stages() -> Any:
    return (lazy(_A) @ lazy(_B)) + 1.0


OPERATIONS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "matmul": (lambda: functools.partial(_engine().matmul, _A, _B), lambda: _A @ _B),
    "gram": (lambda: functools.partial(_engine().gram, _A), lambda: _A.T @ _A),
    "transpose": (lambda: functools.partial(_engine().transpose, _A), lambda: _A.T),
    "add": (lambda: functools.partial(_engine().evaluate, lazy(_A) + 1.0), lambda: _A + 1),
    "stages": (lambda: functools.partial(_engine().evaluate, _stages()), lambda: _A @ _B + 1),
}
"""Call and expected result by operation; the operands are small and the same for every plan."""


def _run_plan(data: bytes, operation: str) -> None:
    call, expected = OPERATIONS[operation]
    with temporary_file(data, "plan.json") as path:
        result = call()(budget=BUDGET, plan=path)
    assert np.array_equal(np.asarray(result), expected()), "an accepted plan gives another result"


@fuzz_target(examples=150)
def plan_matmul(data: bytes) -> None:
    _run_plan(data, "matmul")


@fuzz_target(examples=100)
def plan_gram(data: bytes) -> None:
    _run_plan(data, "gram")


@fuzz_target(examples=100)
def plan_transpose(data: bytes) -> None:
    _run_plan(data, "transpose")


@fuzz_target(examples=100)
def plan_elementwise(data: bytes) -> None:
    _run_plan(data, "add")


@fuzz_target(examples=100)
def plan_stages(data: bytes) -> None:
    _run_plan(data, "stages")


@fuzz_target(examples=200)
def plan_file(data: bytes) -> None:
    """A plan that loads is saved and loaded again as the same plan."""
    with temporary_file(data, "plan.json") as path:
        plan = SavedPlan.load(path)
        plan.save(path)
        assert json.dumps(SavedPlan.load(path).spec) == json.dumps(plan.spec), "the copy is another plan"


HEADER = {
    "operation": "matmul",
    "operands": [[2, 3]],
    "result": [4],
    "task": None,
    "fingerprints": {"A": {"size": 4}},
    "spec": {},
}
"""Of a run that resumes; the seeds start with it."""


def journal_seed() -> bytes:
    """Return the lines of a journal without their checksums."""
    lines = [
        {"journal": VERSION, **HEADER},
        {"done": [[0, 2], [0, 3]]},
        {"done": [[2, 4], [0, 3]]},
        {"complete": [1, 2, 3]},
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def with_checksums(data: bytes) -> bytes:
    """Return the lines of a journal, each with the checksum that continues the one before."""
    checksum, lines = 0, b""
    for line in data.splitlines():
        body = line.rstrip()
        checksum = zlib.crc32(body, checksum)
        lines += b'%b, "crc": "%08x"}\n' % (body[:-1], checksum)
    return lines


def _read_journal(data: bytes) -> None:
    with temporary_file(data, "C.npy.journal") as path:
        find_journal(path)
        _header, boxes = read_journal(path)
        assert all(0 <= start <= stop for box in boxes for start, stop in box)
        check_journal(path, HEADER)


@fuzz_target(examples=200)
def journal(data: bytes) -> None:
    _read_journal(data)


@fuzz_target(examples=200)
def journal_with_checksums(data: bytes) -> None:
    """Lines without checksums, which the target adds: damage reaches the code behind the check."""
    _read_journal(with_checksums(data))


@fuzz_target(examples=200)
def advice(data: bytes) -> None:
    advice = Advice.from_json(data.decode("utf-8", "replace"))
    assert json.dumps(Advice.from_json(advice.to_json()).to_dict()) == json.dumps(advice.to_dict())
    advice.table()


@fuzz_target(examples=100)
def measured_rates(data: bytes) -> None:
    """The cache of rates is optional: a damaged one is ignored."""
    text = data.replace(b'"MACHINE"', json.dumps(machine_fingerprint()).encode())
    with temporary_file(text, "rates.json") as path:
        history = PerformanceHistory(path)
        history.save()
