"""Failures of the command: one line, one exit code, with ``--json`` one object; and how a program ended."""

from __future__ import annotations

import difflib
import enum
import errno
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from accelera.errors import (
    AcceleraError,
    BudgetExceededError,
    DeviceError,
    OutOfMemoryError,
    StoreError,
    TraceFormatError,
)

if TYPE_CHECKING:
    from types import TracebackType


class ExitCode(enum.IntEnum):
    """Exit codes of the command, for scripts."""

    OK = 0
    UNEXPECTED = 1
    """A bug, or an unforeseen case."""
    USAGE = 2
    """The arguments are wrong: shapes or element types that do not fit, an unknown name, a bad size."""
    BUDGET = 3
    """No plan fits the budget; nothing was allocated or written."""
    STORE = 4
    """A file could not be read or written, is damaged, or has changed."""
    DEVICE = 5
    """The device failed, or ran out of memory and nothing else could go on."""
    INTERRUPTED = 130
    """Ctrl-C."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (typer.Abort, ExitCode.INTERRUPTED),
    (BudgetExceededError, ExitCode.BUDGET),
    (OutOfMemoryError, ExitCode.DEVICE),
    (DeviceError, ExitCode.DEVICE),
    (StoreError, ExitCode.STORE),
    (TraceFormatError, ExitCode.STORE),
    (AcceleraError, ExitCode.USAGE),
    (OSError, ExitCode.STORE),
    (MemoryError, ExitCode.DEVICE),
)
"""The first match counts: an error of ours is often also a built-in one."""


_SYNONYMS = {
    "multiply": "matmul",
    "product": "matmul",
    "compute": "evaluate",
    "convert": "copy",
    "replay": "simulate",
    "optimize": "advise",
    "memory": "estimate",
    "ui": "serve",
    "generate": "trace generate",
    "capture": "trace capture",
    "stats": "trace stats",
}
"""Verbs that users try, and the names they have here."""


class VerbGroup(TyperGroup):
    """Group of verbs: its flags show no type, and an unknown verb names the one that was meant."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the verb of that name; None if there is none."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _hide_type_of_flags(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> Any:
        """Return the group's own options."""
        return _hide_type_of_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, verb and remaining arguments; raises UsageError with the verbs that are near."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if not _is_usage(error) or "Did you mean" in error.message:  # type: ignore[attr-defined]
                raise
            near = difflib.get_close_matches(args[0].lower(), _SYNONYMS, n=1)
            meant = _SYNONYMS[near[0]] if near else None
            known = meant is not None and meant.split()[0] in self.commands
            hint = f"Did you mean {meant!r}?" if known else f"Known: {', '.join(self.list_commands(ctx))}."
            error.message = f"{error.message.rstrip('.')}. {hint}"  # type: ignore[attr-defined]
            raise


def _hide_type_of_flags(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


class CarefulGroup(VerbGroup):
    """Turns whatever a command raises into its line and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that ``ctx`` names."""
        words = list(ctx.args)
        try:
            return super().invoke(ctx)
        except (typer.Exit, SystemExit):
            raise
        except BaseException as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            raise typer.Exit(tell(error, as_json="--json" in words)) from error


def tell(error: BaseException, *, as_json: bool) -> int:
    """Print ``error``, to stdout as JSON or to stderr as a line; return the exit code."""
    code, message = exit_code(error), _message(error)
    if as_json:
        found = {"type": type(error).__name__, "message": message, "exit_code": int(code)}
        typer.echo(json.dumps({"error": {**found, **dict(_figures(error))}}))
    else:
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(message, err=True)
    return int(code)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for ``error``."""
    if _is_usage(error):
        return ExitCode.USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


def _message(error: BaseException) -> str:
    if _is_usage(error):
        context: Any = getattr(error, "ctx", None)
        ask = "" if context is None else f" ({context.command_path} --help says more)"
        said = error.format_message().replace("Value error, ", "")  # type: ignore[attr-defined]
        return f"{said}{ask}"
    said = " ".join(str(error).split())
    if exit_code(error) is ExitCode.UNEXPECTED:
        return f"{type(error).__name__}: {said}; `accelera --debug …` shows where, please report it"
    if isinstance(error, typer.Abort):
        return "left as it is"
    return said or ("interrupted" if isinstance(error, KeyboardInterrupt) else repr(error))


def _is_usage(error: BaseException) -> bool:
    """Return whether the argument parser raised ``error``; its classes moved between versions."""
    return hasattr(error, "format_message")


def _figures(error: BaseException) -> Iterator[tuple[str, int]]:
    if isinstance(error, BudgetExceededError):
        yield "needed_bytes", error.needed_bytes
        yield "budget_bytes", error.budget_bytes


def exit_code_of(error: BaseException | None, is_own: Callable[[str], bool]) -> int:
    """Say what Python would of a program's end, and return its exit code.

    Parameters
    ----------
    error
        What it raised; None when it ran to its end.
    is_own
        Whether a source file is the program's: the traceback begins at the first such frame.
    """
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        own = _program_traceback(error.__traceback__, is_own)
        sys.excepthook(type(error), error.with_traceback(own), own)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _program_traceback(start: TracebackType | None, is_own: Callable[[str], bool]) -> TracebackType | None:
    """Return the part of a traceback from the program's first frame on, as Python shows it; else None."""
    found = start
    while found is not None and not is_own(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found
