"""Journal of a run: its request, fingerprints of its operands, and the parts of the result that are stored.

One JSON document per line in ``<result>.journal``: a header (operation, operands and their
fingerprints, the plan's choices), then lines of boxes that are durable in ``<result>.partial``, and at last
the identity of the complete partial file, just before it gets the result's name. A run that was killed
leaves it behind; the next one may resume. A torn line, the trace of a kill while writing, is ignored and
cut off by the run that resumes; a torn header says that nothing is stored yet.
Each line ends with a checksum of itself and of all lines before it, so that a line that was changed, moved
or repeated ends the trusted part.
The file is locked while its run is alive.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import math
import os
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accelera._json_values import parse_json
from accelera.engine.operands import differences
from accelera.errors import StoreChangedError, StoreError
from accelera.plan._internal import Spans

_Face = tuple[int, bool, int, Spans]
"""Axis, whether it is the upper side, where along the axis, and the spans along the others."""


def as_box(region: Iterable[slice]) -> Spans:
    """Return the bounds of a region of slices with step 1."""
    return tuple((part.start, part.stop) for part in region)


class Coverage:
    """A set of boxes that grows; boxes that share a whole face become one, so that there stay few.

    >>> done = Coverage([((0, 2), (0, 4))])
    >>> done.covers(((0, 2), (1, 3))), done.covers(((1, 3), (0, 4)))
    (True, False)
    >>> done.add(((2, 5), (0, 4)))
    >>> list(done)
    [((0, 5), (0, 4))]
    """

    def __init__(self, boxes: Iterable[Spans] = ()) -> None:
        self._boxes: dict[Spans, None] = {}
        self._faces: dict[_Face, Spans] = {}
        self._edges: np.ndarray[Any, Any] | None = None
        for box in boxes:
            self.add(box)

    def add(self, box: Spans) -> None:
        """Add ``box``, which is stored."""
        if box in self._boxes:
            return
        self._edges = None
        while (neighbour := self._neighbour(box)) is not None:
            self._remove(neighbour)
            box = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, neighbour, strict=True))
        self._boxes[box] = None
        self._faces.update((face, box) for face in _faces(box))

    def _neighbour(self, box: Spans) -> Spans | None:
        """Return a box that continues ``box`` along one axis."""
        found = (self._faces.get((axis, not side, edge, rest)) for axis, side, edge, rest in _faces(box))
        return next((each for each in found if each is not None), None)

    def _remove(self, box: Spans) -> None:
        del self._boxes[box]
        for face in _faces(box):
            if self._faces.get(face) == box:
                del self._faces[face]

    def __iter__(self) -> Iterator[Spans]:
        return iter(self._boxes)

    def __len__(self) -> int:
        return len(self._boxes)

    @property
    def elements(self) -> int:
        """Elements of all boxes; those in two boxes count twice."""
        return sum(math.prod(stop - start for start, stop in box) for box in self._boxes)

    def covers(self, box: Spans) -> bool:
        """Return whether every element of ``box`` is stored."""
        if box in self._boxes or any(start >= stop for start, stop in box):
            return True
        left = [box]
        for done in self._near(box):
            left = [piece for each in left for piece in _minus(each, done)]
            if not left:
                return True
        return False

    def _near(self, box: Spans) -> list[Spans]:
        """Return the boxes that overlap ``box``."""
        boxes = list(self._boxes)
        if self._edges is None:
            self._edges = np.array(boxes, dtype=np.int64).reshape(len(boxes), len(box), 2)
        bounds = np.array(box, dtype=np.int64).reshape(len(box), 2)
        overlap = (self._edges[..., 0] < bounds[:, 1]) & (self._edges[..., 1] > bounds[:, 0])
        return [boxes[index] for index in np.flatnonzero(overlap.all(axis=1))]


def _faces(box: Spans) -> Iterator[_Face]:
    """Yield the two faces of a box along each axis."""
    for axis, (start, stop) in enumerate(box):
        rest = (*box[:axis], *box[axis + 1 :])
        yield axis, False, start, rest
        yield axis, True, stop, rest


def _minus(box: Spans, hole: Spans) -> list[Spans]:
    """Return what is left of ``box`` outside ``hole``, as disjoint boxes."""
    overlap = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, hole, strict=True)]
    if any(start >= stop for start, stop in overlap):
        return [box]
    pieces = []
    rest = list(box)
    for axis, (start, stop) in enumerate(overlap):
        low, high = rest[axis]
        pieces += [
            (*rest[:axis], part, *rest[axis + 1 :])
            for part in ((low, start), (stop, high))
            if part[0] < part[1]
        ]
        rest[axis] = (start, stop)
    return pieces


VERSION = 3
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
    """Contents of the journal of an earlier run."""

    header: dict[str, Any]
    boxes: list[Spans]
    """Parts of the result that are stored."""
    complete: list[int] | None
    """Identity of the partial file, noted when it held the whole result, just before publishing."""
    valid_bytes: int
    """Bytes of the complete lines at the start of the journal."""
    checksum: int
    """Checksum of those lines, with which the next line continues."""

    def is_published(self, path: Path) -> bool:
        """Return whether the run's result lies at ``path``: only the end of its journal is missing."""
        return self.complete is not None and self.complete == identity_of(path)


def identity_of(path: Path) -> list[int] | None:
    """Return the identity of a file or folder, which a rename keeps; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return [status.st_ino]
    return [status.st_ino, status.st_size, status.st_mtime_ns]


class Journal:
    """An open journal: ``note`` appends to it, ``close`` keeps it, ``remove`` deletes it."""

    def __init__(
        self, path: Path, header: Mapping[str, Any], done: Coverage, file: io.FileIO, checksum: int = 0
    ) -> None:
        self.path = path
        self.header = header
        self.done = done
        self._file = file
        self._checksum = checksum

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
        return cls(path, old.header, Coverage(old.boxes), file, old.checksum)

    def note(self, *boxes: Spans) -> None:
        """Record that ``boxes`` of the result are durable."""
        self._append(*({"done": box} for box in boxes))
        for box in boxes:
            self.done.add(box)

    def note_complete(self, partial: Path) -> None:
        """Record that ``partial`` holds the whole result and is published next."""
        self._append({"complete": identity_of(partial)})

    def close(self) -> None:
        """Close the file and keep it."""
        self._file.close()

    def remove(self) -> None:
        """Close the file and delete it: the result is published."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _append(self, *entries: Mapping[str, Any]) -> None:
        lines = b""
        for entry in entries:
            line, self._checksum = _sealed(json.dumps(entry).encode(), self._checksum)
            lines += line
        try:
            if self._file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(
                f"[journal] {self.path} cannot be written: {error.strerror}; free some space"
            ) from error


def forget_journal(path: Path) -> None:
    """Delete the journal of an earlier run, durably, before its partial result is overwritten.

    Raises StoreError while that run is still alive.
    """
    if path.exists():
        with _open_locked(path):
            path.unlink()
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)


def finish_journal(path: Path, remove_leftovers: Callable[[], None]) -> None:
    """Remove the leftovers of a run that was killed after it published, then its journal.

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
    """Return a journal's contents; None when there is none, or its run was killed while it was begun.

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
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    return None if _is_torn(content) else _parse(path)


def check_journal(path: Path, header: Mapping[str, Any]) -> JournalRecord:
    """Return the contents of the journal at ``path``, from which the run described by ``header`` resumes.

    Raises StoreError when there is none or it is of another operation, StoreChangedError when an
    operand changed since.
    """
    old = _parse(path)
    _compare(path, old.header, header)
    return old


def _sealed(body: bytes, previous: int) -> tuple[bytes, int]:
    """Return a JSON object as a line with its checksum, and that checksum, which continues ``previous``."""
    checksum = zlib.crc32(body, previous)
    return b'%b, "crc": "%08x"}\n' % (body[:-1], checksum), checksum


_SEAL_BYTES = len(_sealed(b"{}", 0)[0]) - 1
"""Bytes that a line has in addition to the body without its closing brace."""


def _unsealed(line: bytes, previous: int) -> int | None:
    """Return the checksum of an undamaged line; None for any other."""
    expected, checksum = _sealed(line[:-_SEAL_BYTES] + b"}", previous)
    return checksum if line == expected else None


def _is_torn(content: bytes) -> bool:
    """Return whether ``content`` is only the start of a header, or space that was never written."""
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
    checksum = _unsealed(first, 0)
    header = _header(path, first, is_sound=checksum is not None)
    assert checksum is not None, "a damaged header is refused"
    boxes: list[Spans] = []
    complete: list[int] | None = None
    valid_bytes = len(first)
    for line in lines:
        following = _unsealed(line, checksum)
        if following is None:
            break
        box, complete = _box(line), _complete(line)
        if box is not None:
            boxes.append(box)
        elif complete is None:
            break
        valid_bytes += len(line)
        checksum = following
    return JournalRecord(header, boxes, complete, valid_bytes, checksum)


def _header(path: Path, line: bytes, *, is_sound: bool) -> dict[str, Any]:
    try:
        header: dict[str, Any] = parse_json(line)
        version = header.pop("journal")
        header.pop("run", None)
        header.pop("crc", None)
        known = isinstance(header["fingerprints"], dict) and "spec" in header and line.endswith(b"\n")
    except (KeyError, ValueError, AttributeError, TypeError):
        known = False
    if not known:
        raise StoreError(f"[resume] {path} is not a journal, or is damaged; delete it and run without resume")
    if version != VERSION:
        raise StoreError(f"[resume] {path} has journal version {version}, not {VERSION}; run without resume")
    if not is_sound:
        raise StoreError(
            f"[resume] {path} is damaged: its first line does not match its checksum; run without resume"
        )
    return header


def _box(line: bytes) -> Spans | None:
    """Return the box that a line records; None when the line is torn or damaged."""
    try:
        box: Spans = tuple((start, stop) for start, stop in parse_json(line)["done"])
        sound = all(type(edge) is int for span in box for edge in span) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError):
        return None
    return box if sound and all(0 <= start <= stop for start, stop in box) else None


def _complete(line: bytes) -> list[int] | None:
    """Return the identity that a line records; None when it records something else, or is damaged."""
    try:
        identity = parse_json(line)["complete"]
    except (ValueError, KeyError, TypeError):
        return None
    sound = isinstance(identity, list) and identity and all(type(each) is int for each in identity)
    return identity if sound and line.endswith(b"\n") else None


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
