"""A checkpoint: a folder with what all ranks have in common, and a file of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from accelera.execution.cluster.training.generators import generator_states, set_generator_states
from accelera.execution.cluster.training.parts import load_parts, states_of
from accelera.execution.cluster.training.storage import read_state, write_state

COMMON: Final = "common.pt"
"""Parameters and optimizers; written by rank 0."""


@final
@dataclass(slots=True)
class Position:
    """How far a rank has come."""

    step: int = 0
    """Steps that are done."""
    ranks: int = 1
    """How many ranks there are."""
    notes: dict[str, list[float]] = field(default_factory=dict)
    """What the rank noted so far, by name."""


def folder_of(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint after ``step`` steps."""
    return run / f"step-{step:09d}"


def save(folder: Path, rank: int, position: Position, parts: Mapping[str, Any]) -> None:
    """Write this rank's file, and rank 0 also what is common to all."""
    common, own = states_of(parts)
    if rank == 0:
        write_state(folder / COMMON, common)
    generators = generator_states()
    write_state(_own(folder, rank), {"position": _told(position), "parts": own, "generators": generators})


def restore(folder: Path, rank: int, parts: Mapping[str, Any], *, generators: bool = True) -> Position:
    """Bring ``parts``, and the process's random generators, to where a rank was; return how far that was.

    Raises
    ------
    StoreError
        When the files cannot be read.
    KeyError
        When they have no state of a part.
    """
    own = read_state(_own(folder, rank))
    load_parts(parts, read_state(folder / COMMON, in_place=True), own["parts"])
    if generators:
        set_generator_states(own["generators"])
    return Position(**own["position"])


def position_of(folder: Path, rank: int) -> Position:
    """Return how far a rank was, as ``restore`` does, and change nothing."""
    return Position(**read_state(_own(folder, rank))["position"])


def check_ranks(folder: Path, count: int) -> None:
    """Raise ``ValueError`` when the checkpoint ``folder`` is of another number of ranks than ``count``."""
    before = position_of(folder, 0).ranks
    if before != count:
        raise ValueError(
            f"[train] {folder} is of {before} ranks, and now there are {count}: ranks go on as they were, so"
            f" give ranks={before}, or another name= to begin anew"
        )


def last_checkpoint(run: Path) -> Path | None:
    """Return the folder of the last checkpoint that this machine sees of a training, if it sees any."""
    return max((each for each in run.glob("step-*") if _own(each, 0).is_file()), default=None)


def _own(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.pt"


def _told(position: Position) -> dict[str, Any]:
    return {"step": position.step, "ranks": position.ranks, "notes": position.notes}
