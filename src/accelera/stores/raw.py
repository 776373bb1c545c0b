"""Raw files: elements and nothing else; the caller says what they are."""

from __future__ import annotations

from accelera.errors import StoreFormatError
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor
from accelera.stores.flatoutput import FlatOutput
from accelera.stores.formats import Source, Target


def open_path(source: Source) -> FlatFile:
    """Open a headerless file; ``shape`` and ``dtype`` must be given, ``offset`` may.

    Raises StoreFormatError when they are missing, or the file is not exactly as long as they say.
    """
    source.refuse("key")
    if source.shape is None or source.dtype is None:
        raise StoreFormatError(
            f"[open_store] {source.path} has no header: say what it holds with shape= and dtype= "
            "(and offset= for bytes to skip)"
        )
    if source.offset < 0:
        raise StoreFormatError(f"[open_store] {source.path}: offset={source.offset}; it cannot be negative")
    placement = Placement.dense(source.shape, source.dtype, offset=source.offset)
    store = FlatFile(source.path, open_descriptor(source.path), placement, direct=source.direct)
    size = source.path.stat().st_size
    if size != placement.end:
        store.close()
        raise StoreFormatError(
            f"[open_store] {source.path} has {size} bytes, but {source.dtype}{list(source.shape)} at byte "
            f"{source.offset} ends at {placement.end}; correct shape, dtype or offset"
        )
    return store


def create_path(target: Target) -> FlatOutput:
    """Begin a new headerless file."""
    target.refuse("key", "chunk")
    return FlatOutput(target, b"", Placement.dense(target.shape, target.dtype, order=target.order))
