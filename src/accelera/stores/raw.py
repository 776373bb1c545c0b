"""Raw files: elements and nothing else; the caller says what they are."""

from __future__ import annotations

from pathlib import Path

from accelera.errors import StoreFormatError
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor
from accelera.stores.flatoutput import FlatOutput
from accelera.stores.formats import Source, Target
from accelera.stores.remotefile import RemoteFile
from accelera.stores.remotestore import RemoteStore
from accelera.stores.urls import Url


def open_path(source: Source) -> FlatFile:
    """Open a headerless file; ``shape`` and ``dtype`` must be given, ``offset`` may.

    Raises StoreFormatError when they are missing, or the file is not exactly as long as they say.
    """
    placement = _placement(source, source.path)
    store = FlatFile(source.path, open_descriptor(source.path), placement, direct=source.direct)
    try:
        _require_size(source.path, source.path.stat().st_size, placement)
    except StoreFormatError:
        store.close()
        raise
    return store


def open_remote(url: Url, source: Source) -> RemoteStore:
    """Open a headerless file behind a URL; raises the errors of ``open_path``."""
    placement = _placement(source, url.name)
    file = RemoteFile(url)
    _require_size(file.name, file.size, placement)
    return RemoteStore(file, placement)


def _placement(source: Source, name: Path | str) -> Placement:
    source.refuse("key")
    if source.shape is None or source.dtype is None:
        raise StoreFormatError(
            f"[open_store] {name} has no header: say what it holds with shape= and dtype= "
            "(and offset= for bytes to skip)"
        )
    if source.offset < 0:
        raise StoreFormatError(f"[open_store] {name}: offset={source.offset}; it cannot be negative")
    return Placement.dense(source.shape, source.dtype, offset=source.offset)


def _require_size(name: Path | str, size: int, placement: Placement) -> None:
    if size != placement.end:
        raise StoreFormatError(
            f"[open_store] {name} has {size} bytes, but {placement.dtype}{list(placement.shape)} at byte "
            f"{placement.offset} ends at {placement.end}; correct shape, dtype or offset"
        )


def create_path(target: Target) -> FlatOutput:
    """Begin a new headerless file."""
    target.refuse("key", "chunk")
    return FlatOutput(target, b"", Placement.dense(target.shape, target.dtype, order=target.order))
