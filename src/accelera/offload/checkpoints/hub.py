"""Folder of a checkpoint: a path, or a repository in the local cache of Hugging Face."""

from __future__ import annotations

import re
from pathlib import Path

from accelera.errors import StoreError
from accelera.settings import hugging_face_cache

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PREFIX = "models--"
"""Start of the name of a model's folder in the cache."""


def checkpoint_folder(name: str | Path) -> Path:
    """Return the folder of a checkpoint.

    Parameters
    ----------
    name
        A folder, a model's folder in the cache (``models--lab--model``), or a repository such as
        ``"lab/model"`` whose main branch is in the cache. Nothing is downloaded.

    Raises
    ------
    StoreError
        No such folder, and no such repository in the cache; the message states the command to download it.
    """
    path = Path(name)
    if path.name.startswith(_PREFIX) and (path / "snapshots").is_dir():
        return _snapshot(path)
    if path.exists():
        return path
    if not _REPOSITORY.fullmatch(str(name)):
        raise StoreError(f"[offload_checkpoint] {name} is no folder; give the folder of a checkpoint")
    cache = hugging_face_cache()
    model = cache / (_PREFIX + str(name).replace("/", "--"))
    if not model.is_dir():
        raise StoreError(
            f"[offload_checkpoint] {name} is no folder, and no repository in the cache {cache}; download it "
            f"with: hf download {name}"
        )
    return _snapshot(model)


def _snapshot(model: Path) -> Path:
    """Return the snapshot of the main branch, or the only one, of a model's folder in the cache."""
    reference = model / "refs" / "main"
    if reference.is_file():
        commit = reference.read_text().strip()
        if commit and (model / "snapshots" / commit).is_dir():
            return model / "snapshots" / commit
    snapshots = sorted(path for path in (model / "snapshots").glob("*") if path.is_dir())
    if len(snapshots) != 1:
        repository = model.name.removeprefix(_PREFIX).replace("--", "/")
        raise StoreError(
            f"[offload_checkpoint] {model} has {len(snapshots)} snapshots and none of its main branch; give "
            f"the folder of one, or get it again with: hf download {repository}"
        )
    return snapshots[0]
