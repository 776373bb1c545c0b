"""Main loop of a worker process: pieces of work, one after the other, until the program is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

from accelera.execution.executors.processes.caller_state import (
    CallerState,
    WorkerContext,
    imports_as_in_caller,
)
from accelera.execution.executors.processes.errors import PickledError, pack_error
from accelera.execution.executors.processes.messages import (
    AT,
    FUNCTION,
    IDLE,
    STOP,
    TASKS,
    MessageSocket,
    Part,
    SharedPages,
    WorkerReply,
    WorkerRequest,
    pack,
    unpack,
)
from accelera.execution.executors.processes.output import OutputSender, WorkerOutput
from accelera.execution.hardware.cpu_share import become_worker
from accelera.execution.tasks.retry import Retry, RetryLoop


def end_with_last_writer(pipe: int) -> None:
    """Have the kernel kill this process, and what it has started, when nobody can write to ``pipe`` any more.

    This needs no Python: it ends a task too that never lets another thread run. Where the kernel is not
    Linux's it does nothing.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:
        _kill_group()


def end_with(end: socket.socket, driver: int) -> None:
    """End this process, and what it has started, when the process ``driver`` or the other end is gone.

    The other end alone would not do: processes that were forked from the driver have it as well.
    """
    gone = select.poll()
    gone.register(end, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            gone.register(os.pidfd_open(driver), select.POLLIN)
    if os.getppid() == driver:
        gone.poll()
    _kill_group()


def _kill_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


PAUSE_POLL_S: Final = 0.05
"""A pause before another attempt looks so often whether it is to end."""
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def main() -> None:
    """Serve until there is nobody to serve.

    The arguments are three file descriptors, a number of cores, and the process to end with.
    """
    end_fd, shared_fd, life_fd, cores, driver = map(int, sys.argv[1:6])
    sys.argv[1:] = []
    for descriptor in (end_fd, life_fd):
        os.set_inheritable(descriptor, False)
    end_with_last_writer(life_fd)
    for variable in _THREAD_VARIABLES:
        os.putenv(variable, str(cores))
    become_worker(cores)
    end, shared = socket.socket(fileno=end_fd), SharedPages(shared_fd)
    shared.cell[AT] = IDLE
    threading.Thread(target=end_with, args=(end, driver), name="accelera-lifeline", daemon=True).start()
    try:
        _RequestServer(MessageSocket(end, shared.from_worker, shared.to_worker), shared.cell).serve()
    except (EOFError, OSError):
        os._exit(1)


@final
class _RequestServer:
    """Answers requests in order."""

    def __init__(self, wire: MessageSocket, cell: memoryview) -> None:
        self._wire = wire
        self._cell = cell
        self._sender = OutputSender(wire)
        self._output = WorkerOutput(self._sender)
        self._context = WorkerContext()
        self._caller = CallerState.here()
        self._batch = -1
        self._functions: dict[bytes, tuple[Callable[[Any], Any], Retry | None]] = {}

    def serve(self) -> None:
        """Answer until the caller ends the connection."""
        while parts := self._wire.receive():
            self._cell[AT] = FUNCTION
            self._sender.begin()
            request = WorkerRequest(*unpack(parts[:1]))
            self._functions.pop(request.forget or b"", None)
            first = 1 + request.function_parts
            reply = self._prepare(request, parts[1:first])
            if reply is None:
                reply = self._context.run(partial(self._reply_to, request, parts[first:]))
            self._output.flush()
            self._sender.reply(reply)
            del parts, reply

    def _prepare(self, request: WorkerRequest, function_parts: Sequence[Part]) -> Sequence[Part] | None:
        """Load the function and apply the state of the caller; return the reply when that fails.

        In this order: modules that are imported with the function may set the same things, which the caller
        has changed since.
        """
        try:
            if request.environment is not None:
                request.environment.enter()
            if function_parts:
                with imports_as_in_caller():
                    self._functions[request.digest] = unpack(function_parts)
            self._caller = request.caller or self._caller
            if request.batch != self._batch:
                self._batch = request.batch
                self._context.enter(self._caller)
                self._output.capture(*self._caller.captured)
        except BaseException as error:
            return _unreadable("function", error)
        return None

    def _reply_to(self, request: WorkerRequest, parts: Sequence[Part]) -> Sequence[Part]:
        self._cell[AT] = TASKS
        try:
            tasks = unpack(parts)
        except BaseException as error:
            return _unreadable("tasks", error)
        function, retry = self._functions[request.digest]
        loop = _WorkerLoop(function, retry, tasks, self._cell)
        loop.run()
        return loop.reply()


def _unreadable(what: str, error: BaseException) -> Sequence[Part]:
    return pack(WorkerReply(0, [], [], [], what, f"{type(error).__name__}: {error}"))


@final
class _WorkerLoop(RetryLoop):
    """One range of tasks; the position of each is in the shared memory while it runs."""

    def __init__(
        self, function: Callable[[Any], Any], retry: Retry | None, tasks: Sequence[Any], cell: memoryview
    ) -> None:
        super().__init__(len(tasks))
        self._function = function
        self._retry = retry
        self._tasks = tasks
        self._cell = cell
        self._outputs: list[Any] = []
        self._failed: list[tuple[int, PickledError]] = []
        self._retried: list[tuple[int, PickledError]] = []

    @property
    def stopped(self) -> bool:
        return bool(self._cell[STOP])

    def attempt(self, start: int) -> tuple[int, BaseException | None]:
        cell, function, keep = self._cell, self._function, self._outputs.append
        try:
            for position, task in enumerate(self._tasks[start:] if start else self._tasks, start):
                if cell[STOP]:
                    break
                cell[AT] = position
                keep(function(task))
        except BaseException as error:
            return len(self._outputs) - start, error
        return len(self._outputs) - start, None

    def retry_or_fail(self, position: int, error: BaseException, attempts: int) -> bool:
        retry = self._retry
        if retry is not None and retry.allows(error, attempts):
            self._retried.append((position, pack_error(error)))
            return True
        self._failed.append((position, pack_error(error)))
        self._outputs.append(None)
        return False

    def pause(self, attempts: int) -> None:
        assert self._retry is not None, "only what is tried again waits"
        until_s = time.monotonic() + self._retry.pause_s(attempts)
        while not self._cell[STOP] and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, PAUSE_POLL_S))

    def reply(self) -> Sequence[Part]:
        """Return the reply, as parts of a message."""
        self._cell[AT] = len(self._outputs)
        unsendable: list[tuple[int, str]] = []
        try:
            parts = pack(self._outputs)
        except Exception:
            unsendable = self._take_out_unsendable()
            parts = pack(self._outputs)
        reply = WorkerReply(len(self._outputs), self._failed, self._retried, unsendable)
        return [*pack(tuple(reply)), *parts]

    def _take_out_unsendable(self) -> list[tuple[int, str]]:
        found = []
        for position, output in enumerate(self._outputs):
            try:
                pack(output)
            except Exception as error:
                found.append((position, f"{type(output).__name__}: {error}"))
                self._outputs[position] = None
        return found
