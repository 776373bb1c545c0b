"""A process that forks runs which are killed after each of their changes of the disk, and then resumed.

``LD_PRELOAD=killer.so python -m tests.crash.kill_points NAME [POINTS]`` prints a JSON object: how many kill
points the scenario has, which were tried, and what went wrong. POINTS is ``all`` or how many to try, spread
over the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from accelera.engine import MatrixEngine, calibration
from tests.crash.scenarios import SCENARIOS, Scenario, warm, write_operands

KILLED, HALVED = 77, 78
"""Exit codes of the killer: after a call, and after half of a write."""
KILLER = "ACCELERA_TEST_KILLER"
"""Variable that names the shared object that was loaded before all others."""


class Trials:
    """All trials of one scenario."""

    def __init__(self, scenario: Scenario, work: Path) -> None:
        self.scenario, self.work = scenario, work
        self.killer = ctypes.CDLL(os.environ[KILLER])
        self.killer.killer_count.restype = ctypes.c_long
        self.start = work / "start"
        self.start.mkdir()
        write_operands(self.start)
        self.operands = set(os.listdir(self.start))
        if scenario.replaces:
            self._in_child(self._write_older, self.start)
        self.clean = self.prepared("clean")
        self.points = int(self.killed(self.clean, 0, torn=False))
        self.wanted = self._in_child(self._bits_of, self.clean)

    def prepared(self, name: str) -> Path:
        """Return a fresh folder with the operands and the older result."""
        folder = self.work / name
        shutil.copytree(self.start, folder)
        return folder

    def killed(self, folder: Path, point: int, *, torn: bool) -> str:
        """Run the operation until the kill point; return how it ended, at its end the changes counted."""

        def work() -> str:
            # the trailing slash keeps what lies beside the folder out
            self.killer.killer_arm(os.fsencode(f"{folder}/"), point, int(torn))
            self._run(folder, resume=False)
            return str(self.killer.killer_count())

        return self._in_child(work)

    def check(self, folder: Path, how: str) -> str:
        """Return what is wrong after a kill and after the run that follows it; nothing when all is well."""
        return self._in_child(lambda: self._checked(folder, how))

    def _checked(self, folder: Path, how: str) -> str:
        before = self._state(folder)
        if before == "damaged":
            return "what lies under the result's name is neither the older nor the new result"
        if before == "nothing" and self.scenario.replaces:
            return "the older result is gone and the new one is not there"
        if how == "command":
            self._command(folder)
        else:
            self._run(folder, resume=how == "resume")
        if self._bits_of(folder) != self.wanted:
            return "the bits differ from those of an undisturbed run"
        left = set(os.listdir(folder)) - self.operands - {self.scenario.out}
        return f"left behind: {sorted(left)}" if left else ""

    def _state(self, folder: Path) -> str:
        if not self.scenario.target(folder).exists():
            return "nothing"
        try:
            found = self.scenario.written(folder)
        except Exception:
            found = np.empty(0)
        if self.scenario.replaces and np.array_equal(found, self.scenario.older()):
            return "older"
        return "new" if _digest(found) == self.wanted else "damaged"

    def _bits_of(self, folder: Path) -> str:
        return _digest(self.scenario.written(folder))

    def _run(self, folder: Path, *, resume: bool) -> None:
        options = {**self.scenario.options(folder), "resume": resume}
        self.scenario.run(MatrixEngine("cpu", enable_progress=False), folder, options)

    def _command(self, folder: Path) -> None:
        from accelera.cli import app

        words = self.scenario.command(folder)
        assert words is not None, "asked for verbs only"
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = app(words, standalone_mode=False)
        assert not code, f"exit {code}: {said.getvalue()}"

    def _write_older(self, folder: Path) -> str:
        older, target = self.scenario.older(), self.scenario.target(folder)
        if target.suffix == ".zarr":
            import zarr

            zarr.create_array(store=str(target), data=older, chunks=(3, 3))
        else:
            MatrixEngine("cpu").copy(older, out=target)
        return ""

    def _in_child(self, work: Callable[..., str], *arguments: object) -> str:
        """Return what ``work`` returns in a forked process, or how that ended."""
        assert threading.active_count() == 1, "a fork takes only one thread along"
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(receiving)
                try:
                    said = work(*arguments)
                except BaseException:
                    said = traceback.format_exc()
                os.write(sending, said.encode()[-60_000:])
                code = 0
            finally:
                os._exit(code)
        os.close(sending)
        with open(receiving, encoding="utf-8", errors="replace") as pipe:
            said = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return f"exit {status}" if status else said


def trials(scenario: Scenario, points: str) -> dict[str, object]:
    """Return what came of the kill points of a scenario, of all or of so many."""
    began = time.perf_counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        all_ = Trials(scenario, Path(name).resolve())
        tried = list(_chosen(all_.points, points))
        for point in tried:
            others = ["again", *(["command"] if scenario.verb else [])]
            for how, torn in (("resume", False), ("resume", True), (others[point % len(others)], False)):
                wrong.append(_tried(all_, point, how, torn=torn))
        wrong = [each for each in wrong if each]
    return {"points": all_.points, "tried": tried, "wrong": wrong, "seconds": time.perf_counter() - began}


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _tried(all_: Trials, point: int, how: str, *, torn: bool) -> str:
    """Kill the run at ``point`` and do it again; return what is wrong, nothing where the call is no write."""
    folder = all_.prepared("killed")
    ended = all_.killed(folder, point, torn=torn)
    if ended == (f"exit {HALVED}" if torn else f"exit {KILLED}"):
        found = all_.check(folder, how)
    else:
        found = "" if torn and ended == f"exit {KILLED}" else ended
    shutil.rmtree(folder)
    return found and f"killed at {point}{', half done' * torn}, then {how}: {found}"


def _chosen(count: int, points: str) -> Iterator[int]:
    if points == "all":
        yield from range(1, count + 1)
        return
    wanted = min(int(points), count)
    yield from sorted({1 + number * (count - 1) // max(1, wanted - 1) for number in range(wanted)})


def main() -> None:
    # measuring the machine anew in each of hundreds of forks would take most of the time
    calibration._measured_flops = lambda device: 1e11  # type: ignore[assignment]
    scenario = SCENARIOS[sys.argv[1]]
    warm(scenario)
    print(json.dumps(trials(scenario, sys.argv[2])))


if __name__ == "__main__":
    main()
