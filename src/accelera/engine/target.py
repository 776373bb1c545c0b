"""Where a result goes: new memory, the caller's array or store, or a file that appears when complete."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accelera.engine.handles import direct_io
from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores import OutputStore, Store, create_store, open_store, split_key

_CHUNK_BYTES = 4 << 20
_OVERLAP_WORK = 10_000
"""How many cases are tried to find an element that two strided arrays have in common."""


@dataclass(frozen=True)
class Target:
    """The place of a result, before it exists."""

    out: Any
    """None for new memory, an array, a store, or a path."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def path(self) -> Path | None:
        """The file, when the result goes to one."""
        return Path(self.out).expanduser() if isinstance(self.out, (str, os.PathLike)) else None

    @property
    def file(self) -> Path:
        """The file without the name of an array in it; only where there is one."""
        assert self.path is not None, "asked for results in files alone"
        return split_key(self.path, None)[0]

    @property
    def new_bytes(self) -> int:
        """Bytes of RAM that the result itself will take."""
        if self.out is not None:
            return 0
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def chunk(self) -> tuple[int, ...] | None:
        """Chunk shape of a new Zarr array: the longest axis halved until it has 4 MiB; None elsewhere."""
        if self.path is None or self.path.suffix.lower() != ".zarr":
            return None
        chunk = [max(1, size) for size in self.shape]
        while math.prod(chunk) * self.dtype.itemsize > _CHUNK_BYTES:
            longest = chunk.index(max(chunk))
            chunk[longest] = -(-chunk[longest] // 2)
        return tuple(chunk)

    def check(self, op: str, inputs: list[Store], *, resume: bool = False) -> None:
        """Raise unless the result may be put there without harming an input."""
        if resume and self.path is None:
            raise StoreError(f"[{op}] resume=True: only results in files can be resumed; give out= a path")
        if self.path is not None:
            for store in inputs:
                if _same_file(store.name, self.path):
                    raise StoreError(
                        f"[{op}] out={str(self.path)!r} is also an operand; write to another name"
                    )
        elif self.out is not None:
            self._check_given(op, inputs)

    def _check_given(self, op: str, inputs: list[Store]) -> None:
        given = open_store(self.out)
        if given.shape != self.shape:
            raise ShapeError(f"[{op}] out has shape {given.shape}; the result has shape {self.shape}")
        if given.dtype != self.dtype:
            raise DTypeError(f"[{op}] out is {given.dtype}; the result is {self.dtype}")
        mine = given.resident()
        if mine is not None and not mine.flags.writeable:
            raise StoreError(f"[{op}] out is a read-only array; give a writeable one")
        for store in inputs:
            theirs = store.resident()
            if mine is not None and theirs is not None and _overlap(mine, theirs):
                raise StoreError(
                    f"[{op}] out shares memory with operand {store.name}; give it memory of its own"
                )

    def open(self, *, resume: bool) -> Store:
        """Create or open the place.

        Raises StoreError when it cannot be written, before anything is computed.
        """
        if self.path is not None:
            return create_store(
                self.path, self.shape, self.dtype, resume=resume, chunk=self.chunk, direct=direct_io()
            )
        if self.out is None:
            return open_store(np.empty(self.shape, self.dtype))
        return open_store(self.out)

    def opened(self) -> Store:
        """Open the result that lies there, in its file."""
        assert self.path is not None, "asked for results in files alone"
        return open_store(self.path, shape=self.shape, dtype=self.dtype, direct=direct_io())


def publish(store: Store) -> None:
    """Make a complete result visible under its name."""
    if isinstance(store, OutputStore):
        store.commit()
    else:
        store.flush()


def abandon(store: Store, *, keep_partial: bool) -> None:
    """Give up a result that will not be complete."""
    if isinstance(store, OutputStore):
        store.abort(keep_partial=keep_partial)


def _overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays have an element in common, or may have where that is hard to say."""
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _same_file(name: str, path: Path) -> bool:
    try:
        return os.path.samefile(name.split("::")[0], str(path).split("::")[0])
    except (OSError, ValueError):
        return False
