"""Addresses of stores, by which another process opens them again, perhaps on another machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from accelera.errors import StoreError
from accelera.stores.contract import OutputStore, Store, StoreView
from accelera.stores.flatfile import FlatFile, Placement, open_descriptor
from accelera.stores.formats import Source, Target, format_of
from accelera.stores.opening import split_key
from accelera.stores.sampling import sample_of_file
from accelera.stores.viewing import Viewing


@final
@dataclass(frozen=True)
class Address:
    """Place of an array in a file, and the part that is shown; pickled, it means the same elsewhere."""

    path: Path
    placement: Placement | None
    """Where in a flat file; None for a Zarr array."""
    sample: int
    """Checksum of some of the bytes, to detect another file of the same name."""
    look: Viewing

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """Open the store for as long as the context lasts.

        Raises StoreError when it is not to be found here, or is another file.
        """
        with self._base() as base:
            yield StoreView(base, self.look)

    def _base(self) -> Store:
        if self.placement is None:
            found: Store = format_of(self.path).open_path(Source(self.path))
        else:
            found = FlatFile(self.path, open_descriptor(self.path), self.placement)
        try:
            self._check(found)
        except BaseException:
            found.close()
            raise
        return found

    def _check(self, found: Store) -> None:
        if _sampled(found) != self.sample:
            raise StoreError(
                f"[open_store] {self.path} is another file here than where it was opened first, by its size"
                f" or by samples of its bytes: put it in a folder that all machines share, or copy it again"
            )


def address_of(store: Store) -> Address | None:
    """Return where the bytes of ``store`` lie, for other processes; None when they lie in no file."""
    from accelera.stores.zarrstore import ZarrStore

    base, look = store.viewing()
    if isinstance(base, FlatFile) and base.path.is_file():
        return Address(base.path.resolve(), base.placement, _sampled(base), look)
    if isinstance(base, ZarrStore) and base.path is not None:
        return Address(base.path.resolve(), None, _sampled(base), look)
    return None


def _sampled(store: Any) -> int:
    try:
        return sample_of_file(store.path) if isinstance(store, FlatFile) else int(store.sample())
    except OSError as error:
        raise StoreError(f"[open_store] {store.name} cannot be read: {error.strerror}") from error


def join_output(
    path: str | os.PathLike[str],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    chunk: Sequence[int] | None = None,
) -> OutputStore:
    """Open the partial result that another process has begun with ``create_store``, to write regions of it.

    The other process keeps the lock and publishes the result; here ``commit`` is refused, and ``abort`` and
    ``close`` only close. Regions that several processes write must not share a chunk of a Zarr array.

    Raises StoreError when there is no such partial result.
    """
    file, key = split_key(path, None)
    pieces = None if chunk is None else tuple(chunk)
    target = Target(file, tuple(shape), dtype, key, chunk=pieces, resume=True, joined=True)
    output: OutputStore = format_of(file).create_path(target)
    return output
