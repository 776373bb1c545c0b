"""Groups of Zarr arrays: what a new array takes over from its group, and the copies of metadata in groups.

A group may hold copies of the metadata of everything inside it ("consolidated" metadata), from which readers
open its arrays. They are brought up to date when a result replaces, or adds, an array.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accelera._atomic import atomic_write
from accelera._json_values import parse_json
from accelera.errors import StoreError

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Attribute in which xarray keeps the names of the dimensions of an array in format 2."""
_CONSOLIDATED_2 = ".zmetadata"
_DOCUMENTS_2 = (".zarray", ".zattrs")
_DOCUMENT_3 = "zarr.json"


class ArrayBefore(NamedTuple):
    """Properties of the array that a result replaces, or of the group to which it is added."""

    zarr_format: int
    dimension_names: tuple[str | None, ...] | None

    def names_for(self, ndim: int) -> list[str | None] | None:
        """Return the names of the dimensions of a new array of ``ndim`` axes; None without names."""
        names = self.dimension_names
        return list(names) if names is not None and len(names) == ndim else None


def array_before(path: Path) -> ArrayBefore:
    """Return the properties that a new array at ``path`` inherits; format 3 without names by default."""
    if os.path.isfile(path / ".zarray"):
        names = _document(path / ".zattrs").get(DIMENSIONS)
        return ArrayBefore(2, tuple(names) if isinstance(names, list) else None)
    metadata = _document(path / _DOCUMENT_3)
    if metadata.get("node_type") == "array":
        names = metadata.get("dimension_names")
        return ArrayBefore(3, tuple(names) if isinstance(names, list) else None)
    return ArrayBefore(next((number for _, number in _groups_above(path)), 3), None)


def refresh_consolidated(path: Path) -> None:
    """Enter the metadata of the array at ``path`` into the copies that the groups above it hold.

    Raises StoreError when the system refuses; the array itself is complete then.
    """
    for group, zarr_format in _groups_above(path):
        name = path.absolute().relative_to(group).as_posix()
        try:
            if zarr_format == 2:
                _refresh_2(group, name, path)
            else:
                _refresh_3(group, name, path)
        except OSError as error:
            raise StoreError(
                f"[commit] {path} is complete, but the consolidated metadata of {group} cannot be written: "
                f"{error.strerror}; run zarr.consolidate_metadata({str(group)!r})"
            ) from error


def _refresh_2(group: Path, name: str, path: Path) -> None:
    document = _document(group / _CONSOLIDATED_2)
    entries = document.get("metadata")
    if not isinstance(entries, dict):
        return
    before = {**entries}
    for each in _DOCUMENTS_2:
        entries.pop(f"{name}/{each}", None)
        if os.path.isfile(path / each):
            entries[f"{name}/{each}"] = _document(path / each)
    if entries != before:
        _write(group / _CONSOLIDATED_2, document)


def _refresh_3(group: Path, name: str, path: Path) -> None:
    document = _document(group / _DOCUMENT_3)
    consolidated = document.get("consolidated_metadata")
    entries = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(entries, dict):
        return
    metadata = _document(path / _DOCUMENT_3)
    if entries.get(name) != metadata:
        entries[name] = metadata
        _write(group / _DOCUMENT_3, document)


def _groups_above(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield the groups that contain ``path``, the innermost first, with their formats."""
    for folder in path.absolute().parents:
        if os.path.isfile(folder / ".zgroup"):
            yield folder, 2
        elif _document(folder / _DOCUMENT_3).get("node_type") == "group":
            yield folder, 3
        else:
            return


def _document(path: Path) -> dict[str, Any]:
    """Return a JSON file's object; an empty one for a file that is not there, or not readable."""
    try:
        document = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write(path: Path, document: dict[str, Any]) -> None:
    with atomic_write(path, durable=True) as partial:
        partial.write_text(json.dumps(document, indent=2), encoding="utf-8")
