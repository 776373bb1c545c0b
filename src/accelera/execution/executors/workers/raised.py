"""A user's exception on its way from one process to another."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, final

import cloudpickle

from accelera.errors import TransferError
from accelera.execution.notes import add_note


@final
class Raised(NamedTuple):
    """An exception in bytes, in two ways, and in words."""

    own: bytes | None
    """As the exception pickles itself; None when it cannot."""
    parts: bytes | None
    """Its type, arguments and attributes; None when these cannot be pickled."""
    text: str
    """Its traceback."""


def pack_error(error: BaseException) -> Raised:
    """Return ``error`` as it can be sent."""
    trace = error.__traceback__
    error.with_traceback(None)
    text = "".join(traceback.format_exception(type(error), error, trace and trace.tb_next))
    parts = (type(error), error.args, error.__dict__)
    return Raised(_bytes(error), _bytes(parts), f"in worker process {os.getpid()}:\n{text.rstrip()}")


def unpack_error(raised: Raised, index: int, lane: str = "processes") -> BaseException:
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


def _rebuilt(raised: Raised) -> BaseException | None:
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
