"""The folder of a training on a file system that all ranks see: its mark, and files whole or absent."""

from __future__ import annotations

import os
import pickle
import secrets
from pathlib import Path
from typing import Any, Final

from accelera.atomic import atomic_write
from accelera.errors import StoreError

MARK: Final = ".accelera-training"
"""File by which ranks know that the folder is the one the driver made."""


def make_folder(storage: str | os.PathLike[str], name: str) -> tuple[Path, str]:
    """Make the folder ``storage/name`` and return its path with a mark written there.

    Raises
    ------
    TypeError
        When ``storage`` is no path, or ``name`` no text.
    ValueError
        When ``name`` is no name of a folder.
    StoreError
        When ``storage`` is an address of the network, lies in no folder, or cannot be written.
    """
    _check_kinds(storage, name)
    if "://" in str(storage):
        raise StoreError(
            f"[train] storage={str(storage)!r}: checkpoints are written to a directory that all machines see;"
            f" mount it there and give its path"
        )
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(f"[train] name={name!r}: give the name of one folder in {storage}")
    folder = Path(storage).expanduser().absolute() / name
    if not folder.parent.parent.is_dir():
        raise StoreError(
            f"[train] storage={str(storage)!r}: there is no folder {folder.parent.parent}, and only the last"
            f" one is made; make it, or give a directory that all machines of the cluster see"
        )
    mark = secrets.token_hex(8)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(mark)
    except OSError as error:
        raise StoreError(
            f"[train] storage={str(storage)!r} cannot be written ({error}); give a directory that all"
            f" machines of the cluster can write to"
        ) from error
    return folder, mark


def _check_kinds(storage: Any, name: Any) -> None:
    if not (isinstance(storage, (str, os.PathLike)) and isinstance(name, str)):
        raise TypeError(
            f"[train] storage={storage!r}, name={name!r}: give the path of a directory, and the name of a"
            f" folder in it"
        )


def check_shared(folder: Path, mark: str, who: str) -> None:
    """Raise ``StoreError`` when this machine does not see the ``mark`` that the driver wrote."""
    try:
        found = (folder / MARK).read_text()
    except OSError as error:
        found = str(error)
    if found != mark:
        raise StoreError(
            f"[train] {who} does not see {folder} of the machine that trains ({found}): ranks go on from"
            f" checkpoints of each other, so storage= must be on a file system that all machines share"
        )


def write_state(path: Path, state: Any) -> None:
    """Write ``state`` by ``torch.save``: durable under its name, or not there.

    Raises
    ------
    StoreError
        When it cannot be written.
    """
    import torch

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, durable=True) as partial, partial.open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"[train] {path} cannot be written: {error}") from error


def read_state(path: Path, *, in_place: bool = False) -> Any:
    """Return what ``write_state`` wrote; ``in_place``: tensors over the file. It is pickled: trust is needed.

    Raises
    ------
    StoreError
        When it cannot be read.
    """
    import torch

    try:
        return torch.load(path, map_location="cpu", mmap=in_place, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise StoreError(f"[train] {path} cannot be read: {error}") from error
