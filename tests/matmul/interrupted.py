"""Runs that do not reach their end, here and in a process of their own.

``python -m tests.matmul.interrupted '<json>'`` multiplies two files and ends itself in the middle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelera.devices import CpuDevice, get_device
from accelera.engine import Progress, RunObserver
from accelera.stores import open_store
from tests.matmul.products import ROOMY
from tests.planned import matmul

ROOT = Path(__file__).parents[2]


class StopAfter(RunObserver):
    """Raises, or sends this process a signal, when so many tiles are complete."""

    def __init__(self, tiles: int, error: BaseException | None = None, signum: int = 0) -> None:
        self._tiles, self._error, self._signum = tiles, error, signum
        self.errors: list[BaseException] = []

    def on_progress(self, progress: Progress) -> None:
        if progress.done_tiles >= self._tiles:
            if self._error is not None:
                raise self._error
            os.kill(os.getpid(), self._signum)

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


def grid(rows: int, cols: int, edge: int) -> list[tuple[slice, slice]]:
    """Cut a result into square tiles."""
    return [
        (slice(r, min(r + edge, rows)), slice(c, min(c + edge, cols)))
        for r in range(0, rows, edge)
        for c in range(0, cols, edge)
    ]


THREADS = ("accelera-admit", "accelera-compute", "accelera-read", "accelera-write")
"""What a run calls its threads; those of executors and of the load's reading outlive it."""


def our_threads(besides: Collection[threading.Thread] = ()) -> list[str]:
    alive = [each for each in threading.enumerate() if each not in besides]
    return [each.name for each in alive if each.name.startswith(THREADS)]


@contextmanager
def nothing_left() -> Iterator[None]:
    """Raise unless all threads have ended and all memory is returned."""
    device = get_device("cpu")
    assert isinstance(device, CpuDevice)
    before, others = device.allocated_bytes, threading.enumerate()
    yield
    assert our_threads(others) == []
    assert device.allocated_bytes == before


def in_a_process(job: dict[str, Any], *, patch: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``main`` on ``job`` elsewhere, ``patch`` executed first."""
    code = f"{patch}\nimport sys\nfrom tests.matmul.interrupted import main\nmain(sys.argv[1])"
    return subprocess.run(
        [sys.executable, "-c", code, json.dumps(job)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )


def main(text: str) -> None:
    job = json.loads(text)
    described = (
        {"shape": job["shape"], "dtype": job["dtype"]}
        if job["a"].endswith(".bin")
        else {"dtype": job["dtype"]}
    )
    rows, cols = job["shape"]
    try:
        matmul(
            open_store(job["a"], **described),
            open_store(job["b"], **described),
            job["out"],
            device=get_device("cpu"),
            budget_bytes=ROOMY,
            tiles=grid(rows, cols, job["edge"]),
            observers=[StopAfter(job["tiles"], signum=getattr(signal, job["signal"]))],
            resume=job.get("resume", False),
        )
    except KeyboardInterrupt:
        print(json.dumps({"threads": our_threads(), "held": get_device("cpu").allocated_bytes}))  # type: ignore[attr-defined]
        sys.exit(130)
