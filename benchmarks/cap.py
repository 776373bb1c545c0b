"""Run a command by itself, on files that are in no cache, killed when it holds more memory than allowed.

A memory control group is the honest cap: it counts private memory and the page cache the process
brings in, reclaims what it can and kills when it cannot. It needs the right to make one; without
it ``capped`` says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a fresh control group limited to ``limit_bytes``, or None where that is not allowed."""
    unified = (_GROUPS / "cgroup.controllers").exists()
    parent = _GROUPS if unified else _GROUPS / "memory"
    group = parent / f"accelera-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def capped(command: Sequence[str], limit_bytes: int) -> subprocess.CompletedProcess[str] | None:
    """Run ``command`` under a cap of ``limit_bytes``; None where no cap can be set."""
    with memory_group(limit_bytes) as group:
        if group is None:
            return None
        join = f'echo $$ > "{group / "cgroup.procs"}" && exec "$@"'
        return subprocess.run(["sh", "-c", join, "sh", *command], capture_output=True, text=True, check=False)


def alone(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a process of its own, without a cap."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON object of the last line that was printed, or ``{"failed": why}``."""
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed"])[-1]
        return {"failed": f"exit {done.returncode}: {last}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def drop_cache(paths: Iterable[Path]) -> None:
    """Drop the files from the page cache, written back first."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
