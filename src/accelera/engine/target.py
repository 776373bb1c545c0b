"""Target of a result: new memory, the caller's array or store, or a file that appears when complete."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accelera.engine.operands import FileResult, OperandWatch, direct_io
from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores import (
    FlatFile,
    OutputStore,
    Store,
    create_store,
    open_result,
    open_store,
    output_scratch_bytes,
    result_path,
)

_CHUNK_BYTES = 4 << 20
_OVERLAP_WORK = 10_000
"""How many cases are tried to find an element that two strided arrays have in common."""


@dataclass(frozen=True)
class ResultTarget:
    """The place of a result, before it exists."""

    out: Any
    """None for new memory, an array, a store, or a path (within a ``FileResult`` when its layout matters)."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def path(self) -> Path | None:
        """The file, when the result goes to one; links are followed."""
        named = self._named
        return None if named is None else result_path(named)

    @property
    def _named(self) -> Any:
        """The path as it was given, with any ``::key``; None when the result goes elsewhere."""
        named = self.out.path if isinstance(self.out, FileResult) else self.out
        return named if isinstance(named, (str, os.PathLike)) else None

    @property
    def new_bytes(self) -> int:
        """Bytes of RAM that the result itself will take."""
        if self.out is not None:
            return 0
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk(self) -> tuple[int, ...] | None:
        """Chunk shape of a new Zarr array: the longest axis halved until it has 4 MiB; None elsewhere."""
        if self.path is None or self.path.suffix.lower() != ".zarr":
            return None
        if isinstance(self.out, FileResult) and self.out.chunks is not None:
            return self.out.chunks_for(self.shape)
        chunk = [max(1, size) for size in self.shape]
        while math.prod(chunk) * self.dtype.itemsize > _CHUNK_BYTES:
            longest = chunk.index(max(chunk))
            chunk[longest] = -(-chunk[longest] // 2)
        return tuple(chunk)

    @property
    def scratch_bytes(self) -> int:
        """The most host memory that one write to the file takes besides its data."""
        return output_scratch_bytes(self._named, self.chunk, self.dtype)

    def check(self, op: str, inputs: list[Store], *, resume: bool = False) -> None:
        """Raise unless the result may be put there without harming an input."""
        if resume and self.path is None:
            raise StoreError(f"[{op}] resume=True: only results in files can be resumed; give out= a path")
        if self.path is not None:
            for store in (each for operand in inputs for each in operand.sources):
                if _same_file(store.name, self.path):
                    raise StoreError(
                        f"[{op}] out={str(self.path)!r} is also an operand; write to another name"
                    )
        elif self.out is not None:
            self._check_given(op, inputs)

    def watch(self, operands: Mapping[str, Store]) -> OperandWatch:
        """Return the watch over the operands until the result is published."""
        written = self.given() if self.path is None and self.out is not None else None
        return OperandWatch.over(operands, arrays=self.path is not None, written=written)

    def given(self) -> Store:
        """Return the store of what exists already and takes the result.

        Raises StoreError or DTypeError when it cannot be written.
        """
        return open_result(self.out)

    def _check_given(self, op: str, inputs: list[Store]) -> None:
        given = self.given()
        if given.shape != self.shape:
            raise ShapeError(f"[{op}] out has shape {given.shape}; the result has shape {self.shape}")
        if given.dtype != self.dtype:
            raise DTypeError(f"[{op}] out is {given.dtype}; the result is {self.dtype}")
        for store in inputs:
            if shares_elements(given, store):
                raise StoreError(
                    f"[{op}] out shares memory with operand {store.name}; give it memory of its own"
                )

    def open(self, *, resume: bool) -> Store:
        """Create or open the place.

        Raises StoreError when it cannot be written, before anything is computed.
        """
        if self._named is not None:
            return create_store(
                self._named,
                self.shape,
                self.dtype,
                resume=resume,
                chunk=self.chunk,
                codec=self.out.codec if isinstance(self.out, FileResult) else None,
                direct=direct_io(),
            )
        if self.out is None:
            return open_store(np.empty(self.shape, self.dtype))
        return self.given()

    def opened(self) -> Store:
        """Open the result that lies there, in its file."""
        assert self._named is not None, "asked for results in files alone"
        return open_store(self._named, shape=self.shape, dtype=self.dtype, direct=direct_io())


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


def shares_elements(one: Store, other: Store) -> bool:
    """Return whether two stores show elements of the same memory or file, as far as can be told."""
    return any(_touch(mine, theirs) for mine in one.sources for theirs in other.sources)


def _touch(one: Store, other: Store) -> bool:
    mine, theirs = one.resident(), other.resident()
    if mine is not None and theirs is not None:
        return _overlap(mine, theirs)
    base, (beneath, _) = one.viewing()[0], other.viewing()
    if isinstance(base, FlatFile) and isinstance(beneath, FlatFile):
        apart = base.placement.end <= beneath.placement.begin or beneath.placement.end <= base.placement.begin
        return not apart and _same_file(base.name, Path(beneath.name))
    return base is beneath or (base.tier == "disk" and _same_file(base.name, Path(beneath.name)))


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
