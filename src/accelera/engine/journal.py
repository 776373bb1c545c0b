"""Journal of a run: its request, fingerprints of its operands, and the parts of the result that are stored.

One JSON document per line in ``<result>.journal``: a header (operation, operands and their
fingerprints, the plan's choices), then lines of boxes that are durable in ``<result>.partial``, and at last
the identity of the complete partial file, just before it gets the result's name. A run that was killed
leaves it behind; the next one may resume. A torn line, the trace of a kill while writing, is ignored and
cut off by the run that resumes; a torn header says that nothing is stored yet.
The file is locked while its run is alive.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import stat
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelera.engine.coverage import Coverage
from accelera.errors import StoreChangedError, StoreError
from accelera.plan import Spans
from accelera.stores import Store


@dataclass(frozen=True)
class OperandWatch:
    """Operands that must stay as they are while they are read."""

    stores: Mapping[str, Store]
    """By the names that messages give them."""
    prints: Mapping[str, Any]
    """What tells each from what it may become; None where nothing does."""
    written_inode: int | None = None
    """The file that the result goes to while they are read, when it is there already."""

    @classmethod
    def over(cls, stores: Mapping[str, Store], *, arrays: bool, written: Store | None = None) -> OperandWatch:
        """Return a watch that begins now; with ``arrays`` it knows the contents of arrays in memory, too.

        ``written`` takes the result: operands elsewhere in its file are told apart by their bytes alone.
        """
        inode = None if written is None else _inode(written)
        return cls(stores, fingerprints(stores, arrays=arrays, written_inode=inode), inode)

    def require_unchanged(self, op: str) -> None:
        """Raise StoreChangedError when a file that was read is not what it was when the watch began.

        Files and Zarr arrays are looked at, whatever view of them was read. Arrays in memory are not: who
        holds them must leave them alone while they are read.
        """
        for name, store in self.stores.items():
            now = _of_file(store, self.written_inode)
            if now is not None and now != self.prints[name]:
                raise StoreChangedError(
                    f"[{op}] operand {name} ({store.name}) was overwritten while it was read "
                    f"({differences(self.prints[name], now)}): the result would be of neither its old nor "
                    f"its new contents, so it is thrown away; run again when nobody writes to it"
                )


def fingerprints(
    stores: Mapping[str, Store], *, arrays: bool, written_inode: int | None = None
) -> dict[str, Any]:
    """Return each store's own identity with a sample of its contents.

    For one without an identity (memory) a checksum of all its elements, or with ``arrays=False`` None.
    """
    found: dict[str, Any] = {name: _of_file(store, written_inode) for name, store in stores.items()}
    if arrays:
        lost = [name for name, each in found.items() if each is None]
        found |= {name: {"kind": "contents", "crc32": stores[name].checksum()} for name in lost}
    return found


def _of_file(store: Store, written_inode: int | None) -> Mapping[str, Any] | None:
    own = store.fingerprint()
    if own is None:
        return None
    found = {**own, "sample": store.sample()}
    is_written = written_inode is not None and any(_inode(each) == written_inode for each in store.sources)
    return _without_times(found) if is_written else found


def _inode(store: Store) -> int | None:
    own = store.fingerprint()
    return None if own is None else own.get("inode")


def _without_times(found: Any) -> Any:
    """Return a fingerprint without the times at which its files were changed."""
    if isinstance(found, Mapping):
        return {name: _without_times(each) for name, each in found.items() if name != "mtime_ns"}
    return [_without_times(each) for each in found] if isinstance(found, list) else found


def differences(then: Any, now: Any) -> str:
    """Return which parts of a fingerprint differ, in words."""
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return f"it was {then}, now {now}"
    parts = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    return ", ".join(f"{key} was {then.get(key)}, now {now.get(key)}" for key in parts)


VERSION = 2
_BEGINNING = b'{"journal": '
"""Of every header."""


def journal_path(target: str | os.PathLike[str]) -> Path:
    """Return where the journal of a result at ``target`` lies.

    Parameters
    ----------
    target
        Path of the result.
    """
    path = Path(target)
    return path.with_name(path.name + ".journal")


def mark_of(target: str | os.PathLike[str]) -> int:
    """Return a number by which the run that writes ``target`` is told from others; 0 when there is none."""
    try:
        with open(journal_path(target), "rb") as file:
            return zlib.crc32(file.readline())
    except FileNotFoundError:
        return 0


@dataclass(frozen=True)
class JournalRecord:
    """What an earlier run has left in its journal."""

    header: dict[str, Any]
    boxes: list[Spans]
    """Parts of the result that are stored."""
    complete: list[int] | None
    """Identity of the partial file when all was stored in it and it was about to get its name."""
    valid_bytes: int
    """Length of the lines that are whole."""

    def is_published(self, path: Path) -> bool:
        """Return whether the run's result lies at ``path``: only the end of its journal is missing."""
        return self.complete is not None and self.complete == identity_of(path)


def identity_of(path: Path) -> list[int] | None:
    """Return what tells a file or folder from others, whatever its name is; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return [status.st_ino]
    return [status.st_ino, status.st_size, status.st_mtime_ns]


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
        old = _parse(path)
        file.truncate(old.valid_bytes)
        return cls(path, old.header, Coverage(old.boxes), file)

    def note(self, *boxes: Spans) -> None:
        """Record that ``boxes`` of the result are durable."""
        self._append(*({"done": box} for box in boxes))
        for box in boxes:
            self.done.add(box)

    def note_complete(self, partial: Path) -> None:
        """Record that ``partial`` holds the whole result and gets its name next."""
        self._append({"complete": identity_of(partial)})

    def close(self) -> None:
        """Close the file and keep it."""
        self._file.close()

    def remove(self) -> None:
        """Close the file and delete it: the result is published."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _append(self, *entries: Mapping[str, Any]) -> None:
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        try:
            if self._file.write(lines) != len(lines):
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


def finish_journal(path: Path, remove_leftovers: Callable[[], None]) -> None:
    """Delete the journal of a run that was killed after it published, when its leftovers are gone.

    Raises StoreError while that run is still alive.
    """
    with _open_locked(path):
        remove_leftovers()
        path.unlink(missing_ok=True)


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


def read_journal(path: Path) -> tuple[dict[str, Any], list[Spans]]:
    """Return the header and the finished boxes of a journal.

    Parameters
    ----------
    path
        Where the journal lies; see ``journal_path``.

    Raises
    ------
    StoreError
        When it is missing or is no journal of this version.
    """
    found = _parse(path)
    return found.header, found.boxes


def find_journal(path: Path) -> JournalRecord | None:
    """Return what a journal says; None when there is none, or its run was killed while it was begun.

    Parameters
    ----------
    path
        Where the journal would lie; see ``journal_path``.

    Raises
    ------
    StoreError
        When it is no journal of this version.
    """
    try:
        return None if _is_torn(path.read_bytes()) else _parse(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def check_journal(path: Path, header: Mapping[str, Any]) -> JournalRecord:
    """Return what the journal at ``path`` says if a run described by ``header`` may resume from it.

    Raises StoreError when there is none or it is of another operation, StoreChangedError when an
    operand changed since.
    """
    old = _parse(path)
    _compare(path, old.header, header)
    return old


def _is_torn(content: bytes) -> bool:
    """Whether these bytes are the beginning of a header, or space that was never written."""
    first = content[: len(_BEGINNING)]
    return b"\n" not in content and (_BEGINNING.startswith(first) or not content.strip(b"\0"))


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"[resume] {path} cannot be read: {error.strerror}; run without resume")


def _parse(path: Path) -> JournalRecord:
    try:
        first, *lines = path.read_bytes().splitlines(keepends=True) or [b""]
    except FileNotFoundError:
        raise StoreError(f"[resume] there is no journal at {path}; run without resume") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    header = _header(path, first)
    boxes: list[Spans] = []
    complete: list[int] | None = None
    valid_bytes = len(first)
    for line in lines:
        box, complete = _box(line), _complete(line)
        if box is not None:
            boxes.append(box)
        elif complete is None:
            break
        valid_bytes += len(line)
    return JournalRecord(header, boxes, complete, valid_bytes)


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


def _box(line: bytes) -> Spans | None:
    """Return the box that a line notes; None when the line is torn or damaged."""
    try:
        box: Spans = tuple((start, stop) for start, stop in json.loads(line)["done"])
        sound = all(type(edge) is int for span in box for edge in span) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError):
        return None
    return box if sound and all(0 <= start <= stop for start, stop in box) else None


def _complete(line: bytes) -> list[int] | None:
    """Return the identity that a line notes; None when it notes something else, or is torn or damaged."""
    try:
        found = json.loads(line)["complete"]
    except (ValueError, KeyError, TypeError):
        return None
    sound = isinstance(found, list) and found and all(type(each) is int for each in found)
    return found if sound and line.endswith(b"\n") else None


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
                f"({differences(print_then, print_now)}); run without resume to start again"
            )
