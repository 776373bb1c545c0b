"""One worker process, from the side that drives it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Sequence
from multiprocessing.spawn import get_executable
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Any, Final, final

from accelera.execution.executors.workers import shared as memory
from accelera.execution.executors.workers.jobs import Answer, Job, Order
from accelera.execution.executors.workers.parcels import pack, unpack
from accelera.execution.executors.workers.shared import AT, IDLE, STARTING, STOP, Shared
from accelera.execution.executors.workers.surroundings import Surroundings, module_folders
from accelera.execution.executors.workers.wire import Part, Wire

POLL_S: Final = 0.05
"""How often a driver looks whether its batch was stopped."""
GRACE_S: Final = 0.25
"""How long a worker may take to end its task when its batch was stopped, and to leave when asked to."""
MOST_JOBS: Final = 8
"""Functions that a worker keeps."""
_MAIN: Final = "from accelera.execution.executors.workers.child import main; main()"


@final
class Lost(Exception):
    """The worker died."""

    def __init__(self, at: int, status: int | None) -> None:
        super().__init__(f"a worker process died, status {status}")
        self.at = at
        """The position of the task that it was at, or a state of ``shared``."""
        self.status = status
        """What it exited with; negative: the signal that killed it."""


@final
class Worker:
    """A process of its own session, started at once; one driver at a time.

    Parameters
    ----------
    cores
        How many cores its libraries may use.
    """

    def __init__(self, cores: int) -> None:
        with contextlib.ExitStack() as passed_on, contextlib.ExitStack() as kept:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            passed_on.callback(theirs.close)
            descriptor = memory.create()
            passed_on.callback(os.close, descriptor)
            lifeline, life = os.pipe()
            passed_on.callback(os.close, lifeline)
            self._life = kept.enter_context(open(life, "wb", buffering=0))
            self._shared = Shared(os.dup(descriptor))
            self._shared.cell[AT] = STARTING
            self._process = _started((theirs.fileno(), descriptor, lifeline), cores)
            kept.pop_all()
        self._wire = Wire(ours, self._shared.to_worker, self._shared.from_worker)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._surroundings: Surroundings | None = None
        self._ended = False

    @property
    def process_id(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def run(
        self, job: Job, tasks: Sequence[Part], stopped: Callable[[], bool]
    ) -> tuple[Answer, Sequence[Any]] | None:
        """Run packed tasks and return what came of them; None when it was killed for being late.

        Raises
        ------
        Lost
            When the process dies.
        """
        cell = self._shared.cell
        cell[STOP] = 0
        if cell[AT] != STARTING:
            cell[AT] = IDLE
        try:
            self._wire.send([*self._order(job), *tasks])
            if not self._answered(stopped):
                self.kill()
                return None
            parts = self._wire.receive()
        except (OSError, EOFError):
            self.kill()
            raise Lost(cell[AT], self._process.returncode) from None
        except BaseException:
            self.kill()
            raise
        return self._read(job, parts)

    def interrupt(self) -> None:
        """Kill the process while another thread drives it, which sees to the rest."""
        if not self._ended:
            self._end_session()

    def kill(self) -> None:
        """End the process and what it has started, now; not again, as its id may be another's by then."""
        if self._ended:
            return
        self._end_session()
        self._ended = True
        self._process.wait()
        self._wire.close()
        self._life.close()

    def leave(self) -> None:
        """Ask the process, which is idle, to leave."""
        if not self._ended:
            with contextlib.suppress(OSError):
                self._wire.send([])

    def close(self, timeout_s: float) -> None:
        """Kill the process if it was asked to leave and is still there after so many seconds."""
        if not self._ended:
            self._wire.readable(timeout_s)
            self.kill()

    def _order(self, job: Job) -> list[Part]:
        known, forget = job.digest in self._known, None
        self._known[job.digest] = None
        self._known.move_to_end(job.digest)
        if len(self._known) > MOST_JOBS:
            forget = self._known.popitem(last=False)[0]
        job_parts = [] if known else job.parts
        moved = None if job.surroundings == self._surroundings else job.surroundings
        self._surroundings = job.surroundings
        return [*pack(tuple(Order(job.digest, len(job_parts), forget, moved))), *job_parts]

    def _read(self, job: Job, parts: Sequence[Part]) -> tuple[Answer, Sequence[Any]]:
        answer = Answer(*unpack(parts[:1]))
        if answer.unreadable == "function":
            del self._known[job.digest]
            self._surroundings = None
        if len(parts) == 1:
            return answer, ()
        try:
            return answer, unpack(parts[1:])
        except Exception as error:
            return answer._replace(
                unreadable="outputs", why=f"unpickling it: {type(error).__name__}: {error}"
            ), ()

    def _answered(self, stopped: Callable[[], bool]) -> bool:
        """Wait for an answer; return False when the batch was stopped and none came."""
        while not self._wire.readable(POLL_S):
            if not self.alive and not self._wire.readable(0):
                raise EOFError
            if stopped():
                self._shared.cell[STOP] = 1
                return self._wire.readable(GRACE_S)
        return True

    def _end_session(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()


def _started(passed: tuple[int, int, int], cores: int) -> subprocess.Popen[bytes]:
    """Return a new process that has the descriptors ``passed`` as well."""
    setup = f"import sys; sys.path[:] = {module_folders()!r}; {_MAIN}"
    return subprocess.Popen(
        [get_executable(), *_args_from_interpreter_flags(), "-c", setup]
        + [str(number) for number in (*passed, cores, os.getpid())],
        pass_fds=passed,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
