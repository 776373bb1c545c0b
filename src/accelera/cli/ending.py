"""How a user's program ended, said as Python says it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


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
        own = _from_program(error.__traceback__, is_own)
        sys.excepthook(type(error), error.with_traceback(own), own)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _from_program(start: TracebackType | None, is_own: Callable[[str], bool]) -> TracebackType | None:
    """Return the part of a traceback from the program's first frame on, as Python shows it; else None."""
    found = start
    while found is not None and not is_own(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found
