"""Checkpoints of a training by several ranks: one file of the shared state, and the rest by rank."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora import random
from accelera.tensora.distributed.group import ProcessGroup
from accelera.tensora.random import Generator
from accelera.tensora.serialization import load_checkpoint, save_checkpoint


class DistributedCheckpoint:
    """State of a training, as a part that ``Rank.steps`` of a cluster's training keeps and brings back.

    Modules and optimizers are the same in all ranks: rank 0 writes them, whole, to a file by
    `serialization.save_checkpoint`. All else, and `random.default_generator`, each rank has for itself and
    gives to who asks for the state. A file is complete under its name, or not there.

    Parameters
    ----------
    folder
        Where the files are, on a file system that all ranks see; made if only its last part is missing.
    process_group
        The ranks. None: this process alone, to look at a training that is over.
    keep
        Files that are kept, the last ones; at least as many as the cluster keeps checkpoints.
    **parts
        What has ``state_dict()`` and ``load_state_dict()``, or is a `random.Generator`.

    Raises
    ------
    TypeError
        If a part has no state.
    ValueError
        If `keep` is less than 2: one is written while another is the last.

    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        process_group: ProcessGroup | None = None,
        *,
        keep: int = 2,
        **parts: Any,
    ) -> None:
        if keep < 2:
            raise ArgumentError(f"[DistributedCheckpoint] keep={keep}; give 2 or more")
        for name, part in parts.items():
            if not isinstance(part, Generator) and not hasattr(part, "load_state_dict"):
                raise ArgumentError(
                    f"[DistributedCheckpoint] {name}= is a {type(part).__name__} without state_dict and"
                    " load_state_dict; give what has both, or a random.Generator"
                )
        self._folder = Path(folder)
        self._group = process_group
        self._keep = keep
        self._number = 0
        self._shared = {name: part for name, part in parts.items() if _is_shared(part)}
        self._own = {name: part for name, part in parts.items() if not _is_shared(part)}

    @property
    def file(self) -> Path:
        """The last file; `serialization.load_checkpoint` reads it as well."""
        return self._file(self._number)

    def state_dict(self) -> dict[str, Any]:
        """Write the next file, and return its number and this rank's own state; all ranks call it together.

        Raises
        ------
        StoreError
            If the file cannot be written.

        """
        self._number += 1
        if self._group is None or self._group.rank == 0:
            self._folder.mkdir(exist_ok=True)
            save_checkpoint(self.file, extra={"number": self._number}, **self._shared)
            with suppress(FileNotFoundError):
                self._file(self._number - self._keep).unlink()
        else:
            for part in self._shared.values():  # shards of an optimizer are gathered by all ranks
                part.state_dict()
        return {"number": self._number, "own": {name: _state_of(part) for name, part in self._rank_parts()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned and the file that it wrote; all ranks call this together.

        Raises
        ------
        StoreError
            If the file cannot be read; StoreFormatError if it is damaged.
        ValueError
            If the file is of other parts, or of others shapes.

        """
        self._number = state["number"]
        load_checkpoint(self.file, **self._shared)
        for name, part in self._rank_parts():
            if name in state["own"]:
                _restore(part, state["own"][name])

    def _file(self, number: int) -> Path:
        return self._folder / f"tensora-{number:09d}.safetensors"

    def _rank_parts(self) -> list[tuple[str, Any]]:
        return [*self._own.items(), ("random.default_generator", random.default_generator)]


def _is_shared(part: Any) -> bool:
    return hasattr(part, "named_parameters") or hasattr(part, "param_groups")


def _state_of(part: Any) -> Any:
    return part.state if isinstance(part, Generator) else part.state_dict()


def _restore(part: Any, state: Any) -> None:
    if isinstance(part, Generator):
        part.state = state
    else:
        part.load_state_dict(state)
