"""Exceptions of tasks as bytes: type, arguments, attributes, cause, context, notes and group members."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, NamedTuple, final

from accelera.errors import TransferError
from accelera.execution.executors.processes.pickling import TaskPickler
from accelera.execution.faults.classify import add_note

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

_NOT_SENT: Final = frozenset(("__weakref__", "__dict__", "obj"))
"""Fields that are not attributes of the error; ``AttributeError.obj`` may be an object of any size."""


@final
class ErrorRecord(NamedTuple):
    """One exception, in bytes in two ways; related exceptions are positions in ``PickledError.records``."""

    own: bytes | None
    """As the exception pickles itself; None if it cannot be pickled or is a group."""
    parts: bytes | None
    """Its type, arguments and attributes; None if these cannot be pickled."""
    fields: dict[str, bytes]
    """Fields that its classes declare, such as slots, by name; those that can be pickled."""
    line: str
    """The last line of its traceback."""
    cause: int | None
    context: int | None
    suppress_context: bool
    members: tuple[int, ...]
    """Exceptions of a group."""


@final
class PickledError(NamedTuple):
    """An exception in bytes, with the exceptions that it refers to, and in words."""

    records: tuple[ErrorRecord, ...]
    """The exception itself is the first."""
    text: str
    """Its traceback."""


def pack_error(error: BaseException) -> PickledError:
    """Return ``error`` as it can be sent; its traceback is cut off."""
    trace = error.__traceback__
    error.with_traceback(None)
    lines = traceback.format_exception(type(error), error, trace and trace.tb_next)
    text = f"in worker process {os.getpid()}:\n{''.join(lines).rstrip()}"
    return PickledError(_ErrorPacker().records_of(error), text)


def unpack_error(raised: PickledError, index: int, lane: str = "processes") -> BaseException:
    """Return the exception of the task ``index``, with the traceback of the other process as a note."""
    error = _rebuild(raised.records, f"[{lane}] task {index} raised")
    add_note(error, raised.text)
    return error


@final
class _ErrorPacker:
    """Packs an exception and those that it refers to, each once, however they refer to each other."""

    def __init__(self) -> None:
        self._nested: dict[int, bytes | None] = {}
        """Packed exceptions among arguments and attributes by identity; None while one is being packed."""

    def records_of(self, error: BaseException) -> tuple[ErrorRecord, ...]:
        """Return the records of ``error`` and of its causes, contexts and members; ``error`` is the first."""
        errors, position_of = [error], {id(error): 0}

        def position(related: BaseException | None) -> int | None:
            if related is None:
                return None
            if id(related) not in position_of:
                position_of[id(related)] = len(errors)
                errors.append(related)
            return position_of[id(related)]

        # The list grows while it is traversed: recursion would overflow on long chains of contexts.
        return tuple(self._record_of(each, position) for each in errors)

    def _record_of(
        self, error: BaseException, position: Callable[[BaseException | None], int | None]
    ) -> ErrorRecord:
        members = getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ()
        arguments = _arguments_without_members(error, members)
        packed = {name: self._pickled(value, error) for name, value in _fields_of(error)}
        return ErrorRecord(
            None if members else self._pickled(error, error),
            self._pickled((type(error), arguments, error.__dict__), error),
            {name: value for name, value in packed.items() if value is not None},
            traceback.format_exception_only(type(error), error)[-1].rstrip(),
            position(error.__cause__),
            position(error.__context__),
            error.__suppress_context__,
            tuple(at for at in map(position, members) if at is not None),
        )

    def _pickled(self, value: Any, root: BaseException) -> bytes | None:
        """Return ``value`` in bytes; None if it cannot be pickled."""
        file = io.BytesIO()
        self._nested.setdefault(id(root), None)
        try:
            _ErrorPickler(file, self, root).dump(value)
        except Exception:
            return None
        return file.getvalue()

    def nested(self, error: BaseException) -> bytes | None:
        """Return an exception among arguments or attributes in bytes; None for one that contains itself."""
        if id(error) not in self._nested:
            self._nested[id(error)] = None
            self._nested[id(error)] = pickle.dumps(self.records_of(error), protocol=5)
        return self._nested[id(error)]


@final
class _ErrorPickler(TaskPickler):
    """Pickles exceptions inside ``root`` as records: their own form may not survive unpickling."""

    def __init__(self, file: io.BytesIO, packer: _ErrorPacker, root: BaseException) -> None:
        super().__init__(file, protocol=5)
        self._packer = packer
        self._root = root

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduced form of ``obj`` for pickling."""
        if isinstance(obj, BaseException) and obj is not self._root:
            packed = self._packer.nested(obj)
            if packed is not None:
                return _rebuild_nested, (packed,)
        return super().reducer_override(obj)


def _rebuild_nested(packed: bytes) -> BaseException:
    return _rebuild(pickle.loads(packed), "[processes] the exception of a task refers to")


@final
class _Members(NamedTuple):
    """Placeholder of the members of a group among its arguments."""

    is_list: bool

    def filled(self, members: list[BaseException]) -> Any:
        """Return the argument that this object replaces."""
        return members if self.is_list else tuple(members)


def _arguments_without_members(error: BaseException, members: Any) -> tuple[Any, ...]:
    """Return the arguments of ``error``, without the members of a group: these are sent separately."""
    if not members:
        return error.args
    return tuple(
        _Members(isinstance(each, list)) if _holds_members(each, members) else each for each in error.args
    )


def _holds_members(argument: Any, members: Any) -> bool:
    return isinstance(argument, (list, tuple)) and tuple(map(id, argument)) == tuple(map(id, members))


def _fields_of(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield the fields of ``error`` that its classes declare, except those of every exception."""
    for kind in type(error).__mro__:
        if kind is BaseException or kind is object or kind is BaseExceptionGroup:
            continue
        for name, field in list(vars(kind).items()):
            if name not in _NOT_SENT and isinstance(field, (MemberDescriptorType, GetSetDescriptorType)):
                # An unset slot has no value.
                value = getattr(error, name, None)
                if value is not None:
                    yield name, value


def _rebuild(records: tuple[ErrorRecord, ...], operation: str) -> BaseException:
    """Return the first of the exceptions, each of them linked to the others."""
    errors: dict[int, BaseException] = {}
    for at in reversed(range(len(records))):
        # Members are recorded after their group, so most of them exist already.
        _error_at(at, records, errors, operation)
    for at, record in enumerate(records):
        error = errors[at]
        links = {
            "__cause__": None if record.cause is None else errors[record.cause],
            "__context__": None if record.context is None else errors[record.context],
            "__suppress_context__": record.suppress_context,
        }
        for name, value in links.items():
            BaseException.__setattr__(error, name, value)
    return errors[0]


def _error_at(
    at: int, records: tuple[ErrorRecord, ...], errors: dict[int, BaseException], operation: str
) -> BaseException:
    if at not in errors:
        record = records[at]
        members = [_error_at(member, records, errors, operation) for member in record.members]
        error = _value_or_none(lambda: _construct(record, members))
        errors[at] = _unsendable(record, operation) if error is None else error
    return errors[at]


def _unsendable(record: ErrorRecord, operation: str) -> TransferError:
    return TransferError(
        f"{operation} {record.line!r}, which cannot be pickled: an exception crosses to this process only"
        f" if its type and arguments can; keep handles and locks out of them"
    )


def _construct(record: ErrorRecord, members: list[BaseException]) -> BaseException | None:
    """Return an exception with its arguments and attributes; None if its bytes cannot be loaded."""
    kind, arguments, attributes = _loaded_or_none(record.parts) or (None, (), {})
    arguments = tuple(each.filled(members) if isinstance(each, _Members) else each for each in arguments)
    error: Any = _loaded_or_none(record.own)
    if not isinstance(error, BaseException):
        error = _construct_without_init(kind, arguments, members)
    if error is None:
        return None
    if kind is not None:
        # The class may forbid it, as a frozen data class does.
        BaseException.__setattr__(error, "args", arguments)
    error.__dict__.update({name: value for name, value in attributes.items() if name not in error.__dict__})
    for name, packed in record.fields.items():
        with contextlib.suppress(Exception):
            BaseException.__setattr__(error, name, pickle.loads(packed))
    restored: BaseException = error
    return restored


def _construct_without_init(
    kind: Any, arguments: tuple[Any, ...], members: list[BaseException]
) -> BaseException | None:
    """Return an exception without calling its ``__init__``, which may require other arguments."""
    if kind is None:
        return None
    error = _value_or_none(lambda: kind.__new__(kind, *arguments))
    if isinstance(error, BaseException):
        return error
    if not members:
        plain_error: BaseException = BaseException.__new__(kind, *arguments)
        return plain_error
    message = next((each for each in arguments if isinstance(each, str)), kind.__name__)
    group: BaseException = BaseExceptionGroup.__new__(kind, message, members)
    return group


def _loaded_or_none(data: bytes | None) -> Any:
    return None if data is None else _value_or_none(lambda: pickle.loads(data))


def _value_or_none(make: Callable[[], Any]) -> Any:
    """Return the result of ``make``; None when it raises, as unpickling can."""
    try:
        return make()
    except Exception:
        return None
