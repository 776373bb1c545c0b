"""Messages to worker processes and back: what they carry, pickled parts, and the socket that they go by.

Large parts go through shared memory. Copied through memory that is used again and again, a part of 4 MiB
takes half the time that it takes through the socket; above that there is no difference, and memory made for
one message takes several times longer.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import pickle
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast, final

from accelera._descriptors import anonymous_file
from accelera.errors import TransferError
from accelera.execution.executors.processes.caller_state import CallerState
from accelera.execution.executors.processes.errors import PickledError
from accelera.execution.executors.processes.pickling import dumps
from accelera.execution.executors.processes.reloads import RELOADS
from accelera.execution.kernel import Kernel, name_of
from accelera.execution.tasks.retry import Retry

ROOM_BYTES: Final = 4 << 20
"""Room for buffers each way; it takes no memory before it is used."""
STARTING, IDLE, FUNCTION, TASKS = -4, -3, -2, -1
"""States of a worker that runs no task: starting, waiting, loading the function, loading the tasks."""
AT, STOP = 0, 1
_HEAD_BYTES: Final = mmap.PAGESIZE


def create_pages() -> int:
    """Return a file descriptor of such memory, which has no name and ends with its last user."""
    descriptor = anonymous_file("accelera-worker")
    os.ftruncate(descriptor, _HEAD_BYTES + 2 * ROOM_BYTES)
    return descriptor


@final
class SharedPages:
    """The memory behind ``descriptor``, which it takes over."""

    def __init__(self, descriptor: int) -> None:
        view = memoryview(mmap.mmap(descriptor, _HEAD_BYTES + 2 * ROOM_BYTES))
        os.close(descriptor)
        self.cell = view[:16].cast("q")
        """``cell[AT]``: position of the task that the worker is at, or a state; ``cell[STOP]``: 1 to stop."""
        self.to_worker = view[_HEAD_BYTES : _HEAD_BYTES + ROOM_BYTES]
        self.from_worker = view[_HEAD_BYTES + ROOM_BYTES :]


Part = bytes | bytearray | memoryview
LARGE_BYTES: Final = 64 << 10
"""Parts of this size and more travel by themselves."""
_COUNT = struct.Struct("<q")


@final
class MessageSocket:
    """One end of a connection. Each side uses the shared memory in turn, so no unread part is overwritten.

    Parameters
    ----------
    end
        A connected stream socket, taken over.
    room_out, room_in
        Memory that the other end has as its ``room_in`` and ``room_out``.
    """

    def __init__(self, end: socket.socket, room_out: memoryview, room_in: memoryview) -> None:
        self._end = end
        self._room_out = room_out
        self._room_in = room_in

    def readable(self, timeout: float) -> bool:
        """Return whether something has come, or the other end is gone, within ``timeout`` seconds."""
        waiting = select.poll()
        waiting.register(self._end, select.POLLIN)
        return bool(waiting.poll(timeout * 1e3))

    def send(self, parts: Sequence[Part], *, through_room: bool = True) -> None:
        """Send one message; raises ``OSError`` when the other end is gone.

        Without ``through_room`` the shared memory is not used: the other end may not have read it yet.
        """
        lengths, joined, large, used = [], [b""], [], 0
        for part in parts:
            length = len(part)
            if length < LARGE_BYTES:
                joined.append(bytes(part))
            elif through_room and used + length <= len(self._room_out):
                self._room_out[used : used + length] = part
                used, length = used + length, -length
            else:
                large.append(part)
            lengths.append(length)
        joined[0] = struct.pack(f"<{1 + len(lengths)}q", len(lengths), *lengths)
        self._end.sendall(b"".join(joined))
        for part in large:
            self._end.sendall(part)

    def receive(self) -> list[bytearray]:
        """Return the parts of one message; raises ``EOFError`` when the other end is gone."""
        count = _COUNT.unpack(self._read(_COUNT.size))[0]
        lengths = struct.unpack(f"<{count}q", self._read(8 * count))
        parts: list[bytearray] = [bytearray()] * count
        for position in sorted(range(count), key=lambda at: abs(lengths[at]) >= LARGE_BYTES):
            if lengths[position] >= 0:
                parts[position] = self._read(lengths[position])
        used = 0
        for position, length in enumerate(lengths):
            if length < 0:
                parts[position] = bytearray(self._room_in[used : used - length])
                used -= length
        return parts

    def close(self) -> None:
        """Let go of the socket."""
        self._end.close()

    def _read(self, length: int) -> bytearray:
        into = bytearray(length)
        view, got = memoryview(into), 0
        while got < length:
            more = self._end.recv_into(view[got:], length - got, socket.MSG_WAITALL)
            if not more:
                raise EOFError("the other end is gone")
            got += more
        return into


def pack(value: Any) -> list[Part]:
    """Return ``value`` as parts of a message; raises whatever its pickling raises."""
    buffers: list[Part] = []

    def put_aside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    packed = dumps(value, buffer_callback=put_aside)
    return [packed, *buffers]


def unpack(parts: Sequence[Part]) -> Any:
    """Return what ``pack`` was given; its arrays can be written to."""
    return pickle.loads(parts[0], buffers=parts[1:])


def module_folders() -> list[str]:
    """Return ``sys.path`` without what is no text, which counts for nothing there."""
    return [each for each in cast(list[object], sys.path) if isinstance(each, str)]


@final
class ProcessEnvironment(NamedTuple):
    """Working directory, import path and environment variables of a process."""

    folder: str | None
    """The working directory; None when it has been removed."""
    modules: list[str]
    """As ``module_folders`` returns them."""
    environment: dict[str, str]

    @classmethod
    def here(cls) -> ProcessEnvironment:
        """Return those of this process, now."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = None
        return cls(folder, module_folders(), dict(os.environ))

    def enter(self) -> None:
        """Make them those of this process; raises ``OSError`` when the folder is not there."""
        sys.path[:] = self.modules
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        for name, value in self.environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if self.folder is not None:
            os.chdir(self.folder)
        if hasattr(time, "tzset"):
            time.tzset()  # reads TZ again


_BATCHES: Final = itertools.count()


@final
class FunctionPayload:
    """A function and when it is tried again, in bytes; sent to each worker once.

    Raises
    ------
    TransferError
        When the function cannot be pickled.
    """

    def __init__(self, function: Callable[[Any], Any], retry: Retry | None) -> None:
        inner = function.function if isinstance(function, Kernel) else function
        try:
            self.parts: list[Part] = pack((inner, retry))
        except Exception as error:
            raise TransferError(
                f"[processes] {name_of(function)} cannot be sent to another process"
                f" ({type(error).__name__}: {error}): whatever it refers to must be picklable; open files,"
                f" locks and connections inside the function, or run it on threads"
            ) from error
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            digest.update(part)
        self.digest = digest.digest()
        """The same for equal functions."""
        self.environment = ProcessEnvironment.here()
        self.caller = CallerState.here()
        self.batch = next(_BATCHES)
        self.reloads = RELOADS.count()
        """How many reloads of modules workers must have been started after."""


@final
class WorkerRequest(NamedTuple):
    """The first part of what a worker is asked; the tasks follow, unless it is to stop."""

    batch: int
    """Number of the batch."""
    digest: bytes
    """Of the function."""
    function_parts: int
    """How many of the parts that follow are the function; 0: the worker has it."""
    forget: bytes | None
    """The digest of a function that is not needed any more."""
    environment: ProcessEnvironment | None
    """Where the program is now; None: where it was."""
    caller: CallerState | None
    """The state of the caller; None: the same as for the request before."""


@final
class WorkerReply(NamedTuple):
    """The first part of what a worker answers; the outputs follow, where there are any."""

    done: int
    """So many of the first tasks came to an end."""
    failed: list[tuple[int, PickledError]]
    """Positions of tasks that raised, and what."""
    retried: list[tuple[int, PickledError]]
    """Positions of tasks that were tried again, and why."""
    unsendable: list[tuple[int, str]]
    """Positions of tasks whose outputs cannot be pickled, and why."""
    unreadable: str | None = None
    """What could not be unpickled: ``"function"`` or ``"tasks"``, and nothing was begun; or ``"outputs"``."""
    why: str = ""
