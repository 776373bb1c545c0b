"""Messages to worker processes and back: functions, requests, replies, environment, exceptions."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, cast, final

import cloudpickle

from accelera.errors import TransferError
from accelera.execution.arguments import Retry
from accelera.execution.executors.processes.side_effects import captured_constants
from accelera.execution.executors.processes.transport import Part, pack
from accelera.execution.faults.classify import add_note
from accelera.execution.kernel import Kernel, name_of


@final
class PickledError(NamedTuple):
    """An exception in bytes, in two ways, and in words."""

    own: bytes | None
    """As the exception pickles itself; None when it cannot."""
    parts: bytes | None
    """Its type, arguments and attributes; None when these cannot be pickled."""
    text: str
    """Its traceback."""


def pack_error(error: BaseException) -> PickledError:
    """Return ``error`` as it can be sent."""
    trace = error.__traceback__
    error.with_traceback(None)
    text = "".join(traceback.format_exception(type(error), error, trace and trace.tb_next))
    parts = (type(error), error.args, error.__dict__)
    return PickledError(_bytes(error), _bytes(parts), f"in worker process {os.getpid()}:\n{text.rstrip()}")


def unpack_error(raised: PickledError, index: int, lane: str = "processes") -> BaseException:
    """Return the exception of the task ``index``, with the traceback of the other process as a note."""
    error: BaseException | None = _or_none(lambda: _rebuilt(raised))
    if error is None:
        last = raised.text.rpartition("\n")[2]
        error = TransferError(
            f"[{lane}] task {index} raised {last!r}, which cannot be pickled: an exception crosses to this"
            f" process only if its type and arguments can; keep handles and locks out of them"
        )
    add_note(error, raised.text)
    return error


def _rebuilt(raised: PickledError) -> BaseException | None:
    parts, own = _loaded(raised.parts), _loaded(raised.own)
    if not isinstance(own, BaseException):
        return _put_together(parts)
    error: BaseException = own
    if parts is not None:
        _set_arguments(error, parts[1])
    return error


def _put_together(parts: Any) -> BaseException | None:
    """Return an exception without calling its ``__init__``, which may ask for other arguments."""
    if parts is None:
        return None
    kind, arguments, attributes = parts
    new = _or_none(lambda: kind.__new__(kind, *arguments))
    error: BaseException = BaseException.__new__(kind, *arguments) if new is None else new
    _set_arguments(error, arguments)
    error.__dict__.update(attributes)
    return error


def _set_arguments(error: BaseException, arguments: Any) -> None:
    """Set ``args``, also of an exception whose class forbids it, as a frozen data class does."""
    BaseException.__setattr__(error, "args", arguments)


def _bytes(value: Any) -> Any:
    return _or_none(lambda: cloudpickle.dumps(value, protocol=5))


def _loaded(data: bytes | None) -> Any:
    return None if data is None else _or_none(lambda: pickle.loads(data))


def _or_none(make: Callable[[], Any]) -> Any:
    """Return what ``make`` returns; None when it raises, as pickling anything can."""
    try:
        return make()
    except Exception:
        return None


def module_folders() -> list[str]:
    """Return ``sys.path`` without what is no text, which counts for nothing there."""
    return [each for each in cast(list[object], sys.path) if isinstance(each, str)]


@final
class ProcessEnvironment(NamedTuple):
    """What relative paths, imports and ``os.environ`` depend on."""

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


@final
class FunctionPayload:
    """A function and when it is tried again, in bytes; sent to each worker once.

    Parameters
    ----------
    checked
        Whether a worker is to make sure that the function finds there what it finds here.

    Raises
    ------
    TransferError
        When the function cannot be pickled.
    """

    def __init__(self, function: Callable[[Any], Any], retry: Retry | None, *, checked: bool = False) -> None:
        inner = function.function if isinstance(function, Kernel) else function
        constants = captured_constants(inner) if checked else {}
        try:
            self.parts: list[Part] = pack((inner, retry, constants))
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


@final
class WorkerRequest(NamedTuple):
    """The first part of what a worker is asked; the tasks follow, unless it is to stop."""

    digest: bytes
    """Of the function."""
    function_parts: int
    """How many of the parts that follow are the function; 0: the worker has it."""
    forget: bytes | None
    """The digest of a function that is not needed any more."""
    environment: ProcessEnvironment | None
    """Where the program is now; None: where it was."""


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
    seconds: float
    """How long the tasks took."""
    unreadable: str | None = None
    """What could not be unpickled: ``"function"`` or ``"tasks"``, and nothing was begun; or ``"outputs"``."""
    why: str = ""
