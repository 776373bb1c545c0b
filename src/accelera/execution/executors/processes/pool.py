"""Pool of worker processes: started when first needed, lent to one driver at a time, ended together."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.spawn import get_executable
from multiprocessing.util import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Final, final

from accelera.errors import DeviceError
from accelera.execution.executors.processes.caller_state import CallerState
from accelera.execution.executors.processes.messages import (
    AT,
    IDLE,
    STARTING,
    STOP,
    FunctionPayload,
    MessageSocket,
    Part,
    ProcessEnvironment,
    SharedPages,
    WorkerReply,
    WorkerRequest,
    create_pages,
    module_folders,
    pack,
    unpack,
)
from accelera.execution.executors.processes.output import is_output
from accelera.execution.executors.processes.reloads import RELOADS
from accelera.execution.hardware.cpu_share import usable_cores
from accelera.execution.hardware.load import WORKER_IDS
from accelera.execution.kernel import LruDict

POLL_S: Final = 0.05
"""Seconds between two looks of a driver at whether its batch was stopped."""
GRACE_S: Final = 0.25
"""Seconds that a worker has to end its task when its batch was stopped, and to leave when asked to."""
MOST_FUNCTIONS: Final = 8
"""Functions that a worker keeps."""
_MAIN: Final = "from accelera.execution.executors.processes.worker_main import main; main()"


@final
class WorkerDied(Exception):
    """The worker died."""

    def __init__(self, at: int, status: int | None) -> None:
        super().__init__(f"a worker process died, status {status}")
        self.at = at
        """The position of the task that it was at, or a state of ``shared``."""
        self.status = status
        """What it exited with; negative: the signal that killed it."""


@final
class WorkerProcess:
    """A process of its own session, started at once; one driver at a time.

    Parameters
    ----------
    cores
        How many cores its libraries may use.
    """

    def __init__(self, cores: int) -> None:
        self.reloads = RELOADS.count()
        """How many reloads of modules there were before it started."""
        with contextlib.ExitStack() as passed_on, contextlib.ExitStack() as kept:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            passed_on.callback(theirs.close)
            descriptor = create_pages()
            passed_on.callback(os.close, descriptor)
            lifeline, life = os.pipe()
            passed_on.callback(os.close, lifeline)
            self._lifeline_writer = kept.enter_context(open(life, "wb", buffering=0))
            self._shared = SharedPages(os.dup(descriptor))
            self._shared.cell[AT] = STARTING
            self._process = _spawn((theirs.fileno(), descriptor, lifeline), cores)
            WORKER_IDS.add(self._process.pid)
            kept.pop_all()
        self._socket = MessageSocket(ours, self._shared.to_worker, self._shared.from_worker)
        self._sent_functions: LruDict[bytes, bool] = LruDict(MOST_FUNCTIONS)
        self._environment: ProcessEnvironment | None = None
        self._caller: CallerState | None = None
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
        self,
        payload: FunctionPayload,
        tasks: Sequence[Part],
        stopped: Callable[[], bool],
        put_output: Callable[[Sequence[Part]], None],
    ) -> tuple[WorkerReply, Sequence[Part]] | None:
        """Run packed tasks; return the reply and packed outputs, or None if it was late and was killed.

        ``put_output`` receives the output of the tasks, packed, while they run. Nothing that the caller has
        written runs here, as it may need a worker itself: it unpacks the outputs after it has released this.

        Raises
        ------
        WorkerDied
            When the process dies.
        """
        cell = self._shared.cell
        cell[STOP] = 0
        if cell[AT] != STARTING:
            cell[AT] = IDLE
        try:
            self._socket.send([*self._request(payload), *tasks])
            parts = self._await_reply(stopped, put_output)
            if parts is None:
                self.kill()
                return None
        except (OSError, EOFError):
            self.kill()
            raise WorkerDied(cell[AT], self._process.returncode) from None
        except BaseException:
            self.kill()
            raise
        return self._read(payload, parts)

    def interrupt(self) -> None:
        """Kill the process while another thread drives it; that thread cleans up."""
        if not self._ended:
            self._end_session()

    def kill(self) -> None:
        """End the process and what it has started, now; not again, as its id may be another's by then."""
        if self._ended:
            return
        self._end_session()
        self._ended = True
        WORKER_IDS.discard(self._process.pid)
        self._process.wait()
        self._socket.close()
        self._lifeline_writer.close()

    def ask_to_exit(self) -> None:
        """Ask the idle process to exit."""
        if not self._ended:
            with contextlib.suppress(OSError):
                self._socket.send([])

    def close(self, timeout: float) -> None:
        """Kill the process if it was asked to leave and is still there after so many seconds."""
        if not self._ended:
            self._socket.readable(timeout)
            self.kill()

    def _request(self, payload: FunctionPayload) -> list[Part]:
        known = payload.digest in self._sent_functions
        forget = self._sent_functions.put(payload.digest, True)
        function_parts = [] if known else payload.parts
        moved = None if payload.environment == self._environment else payload.environment
        self._environment = payload.environment
        caller = None if payload.caller == self._caller else payload.caller
        self._caller = payload.caller
        request = WorkerRequest(payload.batch, payload.digest, len(function_parts), forget, moved, caller)
        return [*pack(tuple(request)), *function_parts]

    def _read(self, payload: FunctionPayload, parts: Sequence[Part]) -> tuple[WorkerReply, Sequence[Part]]:
        reply = WorkerReply(*unpack(parts[:1]))
        if reply.unreadable == "function":
            self._sent_functions.remove(payload.digest)
            self._environment = self._caller = None
        return reply, parts[1:]

    def _await_reply(
        self, stopped: Callable[[], bool], put_output: Callable[[Sequence[Part]], None]
    ) -> Sequence[Part] | None:
        """Return the reply and pass output of tasks on meanwhile; None without a reply to a stopped batch."""
        until_s = math.inf
        while time.monotonic() < until_s:
            if self._socket.readable(min(POLL_S, max(0.0, until_s - time.monotonic()))):
                parts = self._socket.receive()
                if not is_output(parts):
                    return parts
                put_output(parts[1:])
            elif not self.alive and not self._socket.readable(0):
                raise EOFError
            if until_s == math.inf and stopped():
                self._shared.cell[STOP] = 1
                until_s = time.monotonic() + GRACE_S
        return None

    def _end_session(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()


def _spawn(passed: tuple[int, int, int], cores: int) -> subprocess.Popen[bytes]:
    """Return a new process that has the descriptors ``passed`` as well."""
    setup = f"import sys; sys.path[:] = {module_folders()!r}; {_MAIN}"
    return subprocess.Popen(
        [get_executable(), *_args_from_interpreter_flags(), "-c", setup]
        + [str(number) for number in (*passed, cores, os.getpid())],
        pass_fds=passed,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


MOST_FAILED_STARTS: Final = 3


@final
class WorkerSlot:
    """A place for one worker."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self.worker: WorkerProcess | None = None
        self.failed_starts = 0
        """How many workers in a row died before they were ready."""

    def ready(self, reloads: int) -> WorkerProcess:
        """Return a worker that lives and was started after ``reloads`` reloads of modules."""
        if self.worker is not None and not (self.worker.alive and self.worker.reloads >= reloads):
            self.worker.kill()
            self.worker = None
        if self.worker is None:
            try:
                self.worker = WorkerProcess(self._cores)
            except OSError as error:
                raise DeviceError(
                    f"[processes] no worker process can be started ({error}): allow more processes and open"
                    f" files, ask for fewer workers, or use threads"
                ) from error
        return self.worker


@final
class ProcessPool:
    """A fixed number of worker processes.

    Parameters
    ----------
    count
        How many.
    """

    def __init__(self, count: int) -> None:
        cores = max(1, usable_cores() // count)
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._slots = [WorkerSlot(cores) for _ in range(count)]
        self._idle: queue.LifoQueue[WorkerSlot] = queue.LifoQueue()
        self._waiting_threads: set[int] = set()
        self.closed = False
        for slot in reversed(self._slots):
            self._idle.put(slot)

    @property
    def ours(self) -> bool:
        """Whether this process made it, and not the parent that this process was forked from."""
        return self._process_id == os.getpid()

    @property
    def started(self) -> bool:
        """Whether there is a worker already."""
        return any(slot.worker is not None for slot in self._slots)

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that have been started."""
        workers = [slot.worker for slot in self._slots]
        return [worker.process_id for worker in workers if worker is not None]

    @property
    def has_waiting_threads(self) -> bool:
        """Whether a thread waits for a slot."""
        return bool(self._waiting_threads)

    @contextlib.contextmanager
    def acquire(self, stopped: Callable[[], bool]) -> Iterator[WorkerSlot | None]:
        """Give a slot to the caller; waits until one is idle, gives None when the batch was stopped."""
        slot = self._wait_for_slot(stopped)
        try:
            yield slot
        finally:
            if slot is not None:
                self._idle.put(slot)

    def ready(self, slot: WorkerSlot, reloads: int) -> WorkerProcess:
        """Return the worker of a slot that was lent; raises ``DeviceError`` once the pool is closed."""
        with self._lock:
            if self.closed:
                raise DeviceError(
                    "[processes] the executor was closed: its workers are gone; make a new ProcessesExecutor"
                )
            return slot.ready(reloads)

    def close(self) -> None:
        """End all workers, those at work at once; does nothing in a forked process."""
        if not self.ours:
            return
        with self._lock:
            self.closed = True
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for slot in self._slots:
            worker = slot.worker
            if slot not in idle and worker is not None:
                worker.interrupt()
        leaving = [slot.worker for slot in idle if slot.worker is not None]
        for worker in leaving:
            worker.ask_to_exit()
        until_s = time.monotonic() + GRACE_S
        for worker in leaving:
            worker.close(max(0.0, until_s - time.monotonic()))
        for slot in idle:
            slot.worker = None
            self._idle.put(slot)

    def _wait_for_slot(self, stopped: Callable[[], bool]) -> WorkerSlot | None:
        thread = threading.get_ident()
        self._waiting_threads.add(thread)
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    slot = self._idle.get(timeout=POLL_S)
                    if not stopped():
                        return slot
                    self._idle.put(slot)
                if stopped():
                    return None
        finally:
            self._waiting_threads.discard(thread)
