"""A process in which the N-th passage through a gate of the system fails, N = 1, 2, … until none fails.

``LD_PRELOAD=inject.so python -m tests.faults.runner OPERATION GATES FIRST LAST`` prints a line before each
attempt, which locates the failure if the process dies, and finally a JSON object of the findings. GATES is a
comma-separated list of the names in `GATES`; with a trailing ``+`` all passages from the N-th on fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from accelera import AcceleraError
from accelera import tensora as ts
from tests.faults.operations import CASES, Case

GATES = {"new": 1, "block": 2, "open": 4, "read": 8, "write": 16, "flush": 32, "thread": 64}
INJECTOR = "ACCELERA_TEST_INJECTOR"
"""Variable that names the shared object that was loaded before all others."""
MODULES = ("/_native.", "/_tensora.")
INTERPRETER = ("/libpython", os.path.realpath(sys.executable))
EXHAUSTIVE = 24
"""Passages that are all tried; of later ones a sample is."""


class Injector:
    """The shared object that was loaded before all others."""

    def __init__(self, folder: Path) -> None:
        self.library = ctypes.CDLL(os.environ[INJECTOR])
        self.library.inject_disarm.restype = ctypes.c_long
        self.library.inject_add_module.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
        self.library.inject_arm.argtypes = [ctypes.c_uint, ctypes.c_long, ctypes.c_int]
        self.library.inject_watch_folder(os.fsencode(folder))
        with open("/proc/self/maps") as lines:
            for line in lines:
                is_interpreter = any(name in line for name in INTERPRETER)
                if " r-xp " in line and (is_interpreter or any(name in line for name in MODULES)):
                    begin, end = (int(number, 16) for number in line.split()[0].split("-"))
                    self.library.inject_add_module(begin, end, int(is_interpreter))

    @contextlib.contextmanager
    def failing(self, gates: int, number: int, *, persists: bool) -> Iterator[list[int]]:
        """Let passages fail inside the block; the list holds their count at its end."""
        passed: list[int] = []
        self.library.inject_arm(gates, number, int(persists))
        try:
            yield passed
        finally:
            passed.append(self.library.inject_disarm())


def digest(arrays: Any) -> list[bytes]:
    """Return the contents of arrays, to be compared."""
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


class Trial:
    """Attempts at one operation."""

    def __init__(self, case: Case, injector: Injector) -> None:
        self.case, self.injector = case, injector
        for _ in range(2):  # the second is free of what happens once in a process
            self.expected = digest(case.attempt())
        self.state = digest(case.state())
        gc.collect()
        self.live_bytes = ts.memory_stats().live_bytes
        self.files = len(os.listdir("/proc/self/fd"))

    def run(self, gates: int, number: int, *, persists: bool) -> tuple[list[str], bool]:
        """Return the findings of an attempt and of the checks after it, and whether a passage failed."""
        result, error = None, None
        ts.empty_cache()  # cached blocks would hide allocations
        with self.injector.failing(gates, number, persists=persists) as passed:
            try:
                result = self.case.attempt()
            except BaseException as raised:
                error = raised
        wrong = [] if error is None else _judge(error)
        if result is not None and digest(result) != self.expected:
            wrong.append("a wrong result")
        del result, error
        wrong += self._aftermath()
        return wrong, passed[0] >= number

    def _aftermath(self) -> list[str]:
        wrong = []
        gc.collect()
        if self.case.folder is not None:
            extra_files = set(os.listdir(self.case.folder)) - set(self.case.allowed_files)
            if extra_files:
                wrong.append(f"left behind: {sorted(extra_files)}")
        with contextlib.suppress(Exception):
            if digest(self.case.state()) != self.state:
                wrong.append("an input was changed")
        try:
            if digest((self.case.recover or self.case.attempt)()) != self.expected:
                wrong.append("the next attempt has a wrong result")
        except BaseException:
            wrong.append(f"the next attempt fails: {traceback.format_exc()[-1500:]}")
        gc.collect()
        if ts.memory_stats().live_bytes > self.live_bytes:
            wrong.append(f"{ts.memory_stats()['live_bytes'] - self.live_bytes} bytes of tensors leaked")
        if len(os.listdir("/proc/self/fd")) > self.files:
            wrong.append("a file stays open")
        return wrong


def _judge(error: BaseException) -> list[str]:
    """Return the findings about an error: none if it reports a failure of memory or of a file.

    Errors of the system's calls on files are Python's own, as those of `open` are.
    """
    if isinstance(error, (AcceleraError, MemoryError)) or (isinstance(error, OSError) and error.errno):
        return []
    lines = "".join(traceback.format_exception(error))[-2500:]
    return [f"{type(error).__name__} is no error of this library: {lines}"]


def numbers_of(first: int, last: int) -> Iterator[int]:
    """Yield each of the first passages, and a sample of those after them."""
    yield from range(first, min(last, EXHAUSTIVE) + 1)
    number, sample = max(first, EXHAUSTIVE), random.Random(int(os.environ.get("ACCELERA_TEST_SEED", "0")))
    while number < last:
        number += 1 if os.environ.get("ACCELERA_TEST_EVERY") else sample.randint(1, 1 + number // 2)
        yield min(number, last)


def main(name: str, gate_names: str, first: int, last: int) -> None:
    """Run the trials and print the findings, as JSON in the last line."""
    warnings.simplefilter("ignore")
    persists = gate_names.endswith("+")
    gates = sum(GATES[each] for each in gate_names.rstrip("+").split(","))
    with tempfile.TemporaryDirectory() as folder:
        injector = Injector(Path(folder))
        trial = Trial(CASES[name](Path(folder)), injector)
        findings, tried = {}, 0
        for number in numbers_of(first, last):
            print(f"passage {number}", flush=True)
            wrong, failed = trial.run(gates, number, persists=persists)
            if wrong:
                findings[number] = wrong
            tried += failed
            if not failed:
                break
        print(json.dumps({"tried": tried, "wrong": findings}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
