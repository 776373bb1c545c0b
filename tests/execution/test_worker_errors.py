"""Exceptions of tasks in worker processes have the form that they have on threads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from accelera.errors import TransferError
from accelera.execution import ProcessesExecutor, StrategyManager

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class ParseError(Exception):
    def __init__(self, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}")
        self.line, self.column = line, column


class KeywordError(ValueError):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


class SlotError(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__("slot")
        self.code = code


@dataclass(frozen=True)
class FrozenError(Exception):
    path: str
    line: int


class BatchError(Exception):
    def __init__(self, errors: list[Exception]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = errors


class LineGroup(ExceptionGroup):
    line: int

    def __new__(cls, errors: Any, line: int) -> LineGroup:
        group = super().__new__(cls, f"line {line}", errors)
        group.line = line
        return group

    def derive(self, excs: Any) -> Any:
        return LineGroup(excs, self.line)


def group() -> BaseException:
    return ExceptionGroup("two files", [OSError(2, "absent", "a.txt"), ParseError(3, 14)])


def nested_group() -> BaseException:
    inner = ExceptionGroup("inner", (ParseError(1, 2), KeywordError(code=5)))
    return ExceptionGroup("outer", [inner, ValueError("x")])


def own_group() -> BaseException:
    return LineGroup([ParseError(3, 14), ValueError("x")], 7)


def noted() -> BaseException:
    error: Any = ParseError(1, 2)
    error.__notes__ = ["first note", "second note"]
    return error


def caused() -> BaseException:
    error = ParseError(1, 2)
    error.__cause__ = KeywordError(code=3)
    error.__cause__.__context__ = SlotError(4)
    return error


def suppressed() -> BaseException:
    error = RuntimeError("no number")
    error.__context__ = ParseError(1, 2)
    error.__suppress_context__ = True
    return error


def cyclic() -> BaseException:
    error = ParseError(1, 2)
    error.__context__ = ValueError("x")
    error.__context__.__context__ = error
    return error


def long_chain() -> BaseException:
    error: BaseException = ParseError(0, 0)
    for line in range(2000):
        following = ParseError(line, 1)
        following.__cause__, error = error, following
    return error


def holds_errors() -> BaseException:
    return BatchError([ParseError(1, 2), BatchError([KeywordError(code=1)])])


def holds_itself() -> BaseException:
    error = ValueError("line 1, column 2")
    error.line = error  # type: ignore[attr-defined]
    return error


def decoding() -> BaseException:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")


def chosen(make: Callable[[], BaseException]) -> Callable[[int], None]:
    def raises(task: int) -> None:
        raise make()

    return raises


def form(error: BaseException | None, depth: int = 0) -> Any:
    """Return type, arguments, attributes, notes and related exceptions of ``error``."""
    if error is None or depth > 4:
        return None
    fields = {name: value for name, value in vars(error).items() if name != "__notes__"}
    own_notes = [
        note for note in getattr(error, "__notes__", ()) if "task 0" not in note and "worker" not in note
    ]
    slot = getattr(error, "code", None), getattr(error, "filename", None), getattr(error, "name", None)
    members = [form(member, depth + 1) for member in getattr(error, "exceptions", ())]
    related = (form(error.__cause__, depth + 1), form(error.__context__, depth + 1))
    arguments = (repr(error.args), str(error), repr(fields), own_notes, slot)
    return type(error).__qualname__, *arguments, error.__suppress_context__, members, related


MAKERS: dict[str, Callable[[], BaseException]] = {
    "group": group,
    "nested_group": nested_group,
    "own_group": own_group,
    "noted": noted,
    "caused": caused,
    "suppressed": suppressed,
    "cyclic": cyclic,
    "long_chain": long_chain,
    "holds_errors": holds_errors,
    "decoding": decoding,
    "two_arguments": lambda: ParseError(3, 4),
    "keyword": lambda: KeywordError(code=3),
    "slots": lambda: SlotError(9),
    "frozen": lambda: FrozenError("a.txt", 4),
    "key": lambda: KeyError("name"),
    "os": lambda: FileNotFoundError(2, "absent", "x.txt"),
    "rename": lambda: PermissionError(13, "denied", "a", None, "b"),
    "import": lambda: ImportError("no module", name="m", path="/m.py"),
    "stop": lambda: StopIteration(3),
    "syntax": lambda: SyntaxError("bad", ("f.py", 3, 4, "x = (")),
    "json": lambda: json.JSONDecodeError("bad", "{,}", 1),
    "subprocess": lambda: subprocess.CalledProcessError(3, ["x"], b"out", b"err"),
    "timeout": lambda: subprocess.TimeoutExpired(["x"], 3.0),
}


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(1) as executor:
        yield executor


def raised_by(manager: StrategyManager, make: Callable[[], BaseException]) -> BaseException:
    return manager.execute([0], chosen(make), on_error="collect").failures[0].error


@pytest.mark.parametrize("name", MAKERS)
def test_errors_from_workers_equal_those_of_threads(processes: ProcessesExecutor, name: str) -> None:
    expected = raised_by(StrategyManager.cpu_only("threads"), MAKERS[name])
    received = raised_by(StrategyManager.cpu_only(processes), MAKERS[name])
    assert form(received) == form(expected)


def test_unsendable_members_are_named_in_their_group(processes: ProcessesExecutor) -> None:
    def raises(task: int) -> None:
        import threading

        raise ExceptionGroup("mixed", [ParseError(1, 2), ValueError(threading.Lock())])

    manager = StrategyManager.cpu_only(processes)
    error = manager.execute([0], raises, on_error="collect").failures[0].error
    assert isinstance(error, ExceptionGroup)
    assert isinstance(error.exceptions[0], ParseError)
    assert isinstance(error.exceptions[1], TransferError)


def test_self_referential_errors_arrive(processes: ProcessesExecutor) -> None:
    error = raised_by(StrategyManager.cpu_only(processes), holds_itself)
    assert isinstance(error, ValueError)
    assert isinstance(vars(error)["line"], ValueError)
    assert str(error) == "line 1, column 2"


def test_raising_from_keeps_the_cause(processes: ProcessesExecutor) -> None:
    def raises(task: int) -> None:
        try:
            int("x1")
        except ValueError as error:
            raise RuntimeError("no number") from error

    with pytest.raises(RuntimeError, match="no number") as raised:
        StrategyManager.cpu_only(processes).execute([0], raises)
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.__cause__ is raised.value.__context__
