"""The journal of a run: what it was asked, and which parts of the result are stored.

One JSON document per line in ``<result>.journal``: a header (operation, operands and their
fingerprints, the plan's choices), then one line per finished block, written after the block itself
is durable. A run that was killed leaves it beside ``<result>.partial``; the next one may resume.
A torn last line, the trace of a kill while writing, is ignored and cut off by the run that resumes.
The file is locked while its run is alive.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelera.engine.coverage import Box, Coverage
from accelera.errors import StoreChangedError, StoreError

VERSION = 1


def journal_path(target: str | os.PathLike[str]) -> Path:
    """Return where the journal of a result at ``target`` lies."""
    path = Path(target)
    return path.with_name(path.name + ".journal")


def mark_of(target: str | os.PathLike[str]) -> int:
    """Return a number by which the run that writes ``target`` is told from others; 0 when there is none."""
    try:
        with open(journal_path(target), "rb") as file:
            return zlib.crc32(file.readline())
    except FileNotFoundError:
        return 0


class Journal:
    """An open journal; ``note`` appends, ``close`` ends, ``remove`` forgets."""

    def __init__(self, path: Path, header: Mapping[str, Any], done: Coverage, file: io.FileIO) -> None:
        self.path = path
        self.header = header
        self.done = done
        self._file = file

    @classmethod
    def begin(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Start a new journal, replacing an old one.

        Raises StoreError when it cannot be written, or is that of a run that is still alive.
        """
        journal = cls(path, header, Coverage(), _open_locked(path))
        try:
            journal._file.truncate(0)
            journal._append({"journal": VERSION, "run": uuid.uuid4().hex, **header})
        except BaseException:
            journal.remove()
            raise
        return journal

    @classmethod
    def resume(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Open the journal of an interrupted run of the same operation.

        Raises StoreError when there is none, it is of another operation or its run is still alive,
        StoreChangedError when an operand changed since.
        """
        check_journal(path, header)
        file = _open_locked(path)
        old, boxes, valid_bytes = _parse(path)
        file.truncate(valid_bytes)
        return cls(path, old, Coverage(boxes), file)

    def note(self, box: Box) -> None:
        """Record that ``box`` of the result is durable."""
        self._append({"done": box})
        self.done.add(box)

    def close(self) -> None:
        """Close the file and keep it."""
        self._file.close()

    def remove(self) -> None:
        """Close the file and delete it: the result is published."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(
                f"[journal] {self.path} cannot be written: {error.strerror}; free some space"
            ) from error


def forget_journal(path: Path) -> None:
    """Delete the journal of an earlier run, for good, before its partial result is overwritten.

    Raises StoreError while that run is still alive.
    """
    if path.exists():
        with _open_locked(path):
            path.unlink()
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)


def _open_locked(path: Path) -> io.FileIO:
    try:
        file = open(path, "ab", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise StoreError(
            f"[journal] {path} cannot be written: {error.strerror}; choose another place"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreError(f"[journal] {path} belongs to a run that is still alive; wait for it") from None
    return file


def read_journal(path: Path) -> tuple[dict[str, Any], list[Box]]:
    """Return the header and the finished boxes of a journal.

    Raises StoreError when it is missing or is no journal of this version.
    """
    header, boxes, _ = _parse(path)
    return header, boxes


def check_journal(path: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of the journal at ``path`` if a run described by ``header`` may resume from it.

    Raises StoreError when there is none or it is of another operation, StoreChangedError when an
    operand changed since.
    """
    old, _ = read_journal(path)
    _compare(path, old, header)
    return old


def _parse(path: Path) -> tuple[dict[str, Any], list[Box], int]:
    """Return the header, the boxes, and how many bytes of the file are whole lines of them."""
    try:
        first, *lines = path.read_bytes().splitlines(keepends=True) or [b""]
    except FileNotFoundError:
        raise StoreError(f"[resume] there is no journal at {path}; run without resume") from None
    except OSError as error:
        raise StoreError(f"[resume] {path} cannot be read: {error.strerror}; run without resume") from error
    header = _header(path, first)
    boxes: list[Box] = []
    valid_bytes = len(first)
    for line in lines:
        box = _box(line)
        if box is None:
            break
        boxes.append(box)
        valid_bytes += len(line)
    return header, boxes, valid_bytes


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(line)
        version = header.pop("journal")
        header.pop("run", None)
        known = isinstance(header["fingerprints"], dict) and "spec" in header and line.endswith(b"\n")
    except (KeyError, ValueError, AttributeError, TypeError):
        known = False
    if not known:
        raise StoreError(f"[resume] {path} is not a journal, or is damaged; delete it and run without resume")
    if version != VERSION:
        raise StoreError(f"[resume] {path} has journal version {version}, not {VERSION}; run without resume")
    return header


def _box(line: bytes) -> Box | None:
    """Return the box that a line notes; None when the line is torn or damaged."""
    try:
        box: Box = tuple((start, stop) for start, stop in json.loads(line)["done"])
        sound = all(type(edge) is int for span in box for edge in span) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError):
        return None
    return box if sound and all(0 <= start <= stop for start, stop in box) else None


def _compare(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in ("operation", "operands", "result", "task"):
        if old.get(key) != json.loads(json.dumps(new.get(key))):
            raise StoreError(
                f"[resume] {path} is of another run: {key} was {old.get(key)}, now {new.get(key)}; "
                f"run without resume"
            )
    for name, print_now in json.loads(json.dumps(new["fingerprints"])).items():
        print_then = old["fingerprints"].get(name)
        if print_then != print_now:
            raise StoreChangedError(
                f"[resume] operand {name} changed since the interrupted run "
                f"({_changes(print_then, print_now)}); run without resume to start again"
            )


def _changes(then: Any, now: Any) -> str:
    """Return which parts of a fingerprint differ, in words."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return f"it was {then}, now {now}"
    parts = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    return ", ".join(f"{key} was {then.get(key)}, now {now.get(key)}" for key in parts)
