"""Paths as users write them, with ``~`` for a home folder."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from accelera.errors import ArgumentError


def user_path(path: str | PathLike[str], op: str) -> Path:
    """Return a path with its home folder expanded.

    Parameters
    ----------
    path
        A path that may start with ``~`` or ``~user``.
    op
        Name of the operation, for messages.

    Raises
    ------
    ArgumentError
        For a user that does not exist, and for a path with a NUL byte, which no file has.
    """
    try:
        expanded = Path(path).expanduser()
    except (RuntimeError, ValueError) as error:
        raise ArgumentError(f"[{op}] path {str(path)!r:.120}: {error}; write the whole path") from error
    if "\0" in str(expanded):
        raise ArgumentError(f"[{op}] path {str(path)!r:.120} has a NUL byte; give the path of a file")
    return expanded
