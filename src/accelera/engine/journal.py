"""The journal of a run: what it was asked, and which parts of the result are stored.

One JSON document per line in ``<result>.journal``: a header (operation, operands and their
fingerprints, the plan's choices), then one line per finished block, written after the block itself
is durable. A run that was killed leaves it beside ``<result>.partial``; the next one may resume.
A torn last line, the trace of a kill while writing, is ignored.
"""

from __future__ import annotations

import json
import os
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


class Journal:
    """An open journal; ``note`` appends, ``close`` ends, ``remove`` forgets."""

    def __init__(self, path: Path, header: Mapping[str, Any], done: Coverage, *, fresh: bool) -> None:
        self.path = path
        self.header = header
        self.done = done
        self._file = open(path, "w" if fresh else "a", encoding="utf-8")  # noqa: SIM115
        if fresh:
            self._append({"journal": VERSION, **header})

    @classmethod
    def begin(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Start a new journal, replacing an old one."""
        return cls(path, header, Coverage(), fresh=True)

    @classmethod
    def resume(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Open the journal of an interrupted run of the same operation.

        Raises StoreError when there is none or it is of another operation, StoreChangedError when
        an operand changed since.
        """
        old, boxes = read_journal(path)
        _compare(path, old, header)
        return cls(path, old, Coverage(boxes), fresh=False)

    def note(self, box: Box) -> None:
        """Record that ``box`` of the result is durable."""
        self.done.add(box)
        self._append({"done": box})

    def close(self) -> None:
        """Close the file and keep it."""
        self._file.close()

    def remove(self) -> None:
        """Close the file and delete it: the result is published."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> tuple[dict[str, Any], list[Box]]:
    """Return the header and the finished boxes of a journal.

    Raises StoreError when it is missing or is no journal of this version.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0])
        version = header.pop("journal")
    except FileNotFoundError:
        raise StoreError(f"[resume] there is no journal at {path}; run without resume") from None
    except (IndexError, KeyError, ValueError, AttributeError) as error:
        raise StoreError(
            f"[resume] {path} is not a journal: {error}; delete it and run without resume"
        ) from error
    if version != VERSION:
        raise StoreError(f"[resume] {path} has journal version {version}, not {VERSION}; run without resume")
    boxes = []
    for line in lines[1:]:
        try:
            boxes.append(tuple((start, stop) for start, stop in json.loads(line)["done"]))
        except (ValueError, KeyError, TypeError):
            break
    return header, boxes


def _compare(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in ("operation", "operands", "result"):
        if old.get(key) != json.loads(json.dumps(new[key])):
            raise StoreError(
                f"[resume] {path} is of another run: {key} was {old.get(key)}, now {new[key]}; "
                f"run without resume"
            )
    for name, print_now in json.loads(json.dumps(new["fingerprints"])).items():
        if old["fingerprints"].get(name) != print_now:
            raise StoreChangedError(
                f"[resume] operand {name} changed since the interrupted run: it was "
                f"{old['fingerprints'].get(name)}, now {print_now}; run without resume to start again"
            )
