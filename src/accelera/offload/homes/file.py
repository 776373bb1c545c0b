"""A region of a file: a tensor of a checkpoint, or a piece of scratch space."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from accelera.errors import StoreError
from accelera.memory import Bytes
from accelera.offload.homes.open_file import OpenFile


@final
class FileHome:
    """``nbytes`` of an open file from byte ``offset``; transfers go around the page cache where they can.

    A region of a file that was opened for reading stays what it is; ``on_release`` takes back another.
    """

    def __init__(
        self,
        file: OpenFile,
        offset: int,
        nbytes: int,
        on_release: Callable[[FileHome], None] | None = None,
    ) -> None:
        if offset < 0 or offset + nbytes > file.nbytes:
            raise StoreError(
                f"[offload] {file.path} has {file.nbytes} bytes; a region of {nbytes} at byte {offset} does "
                "not lie in it: the file is cut off, or its index is wrong"
            )
        self.file = file
        self.offset = offset
        self.nbytes = nbytes
        self._on_release = on_release

    @property
    def writable(self) -> bool:
        """Whether the file is open for writing."""
        return self.file.writable

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on; raises StoreError when the file ends early."""
        return self.file.read(self.offset + start, out)

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; raises StoreError for a read-only file or a full disk."""
        return self.file.write(self.offset + start, data)

    def resident(self) -> None:
        """They lie in a file."""

    def mapped(self) -> Bytes:
        """Return the region mapped privately: pages of the file until somebody writes to them."""
        return self.file.map(self.offset, self.nbytes)

    def release(self) -> None:
        """Give the region back to whoever lent it."""
        if self._on_release is not None:
            self._on_release(self)
