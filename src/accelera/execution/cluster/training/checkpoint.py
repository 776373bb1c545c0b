"""Training checkpoints: a folder with the state that all ranks share, and a file of each rank's own."""

from __future__ import annotations

import os
import pickle
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from accelera._atomic import atomic_write
from accelera._user_paths import user_path
from accelera.errors import ArgumentError, StoreError, UnknownNameError

if TYPE_CHECKING:
    import torch


def generator_states() -> dict[str, Any]:
    """Return the states of the random generators: PyTorch (CPU, current GPU), NumPy and Python."""
    import numpy as np
    import torch

    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    """Set the random generators to states that ``generator_states`` returned."""
    import numpy as np
    import torch

    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


State = dict[str, Any]


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for a part whose state cannot be had."""
    for name, part in parts.items():
        if not all(hasattr(part, method) for method in _methods(part)):
            raise ArgumentError(
                f"[train] {name}={part!r}: a part has state_dict() and load_state_dict(), as modules,"
                f" optimizers, schedulers and samplers do, or is a torch.Generator"
            )


def states_of(parts: Mapping[str, Any]) -> tuple[State, State]:
    """Return what all ranks have in common, and what is this rank's own.

    Common are parameters and what optimizers hold; buffers of modules and all else are each rank's own.
    """
    import torch

    common: State = {}
    own: State = {}
    for name, part in parts.items():
        state = getattr(part, _methods(part)[0])()
        if isinstance(part, torch.nn.Module):
            shared = {key for key, _ in part.named_parameters(remove_duplicate=False)}
            common[name] = {key: value for key, value in state.items() if key in shared}
            own[name] = {key: value for key, value in state.items() if key not in shared}
        else:
            (common if isinstance(part, torch.optim.Optimizer) else own)[name] = state
    return common, own


def load_parts(parts: Mapping[str, Any], common: State, own: State) -> None:
    """Give ``parts`` the states that ``states_of`` returned; tensors in them may be over files.

    Raises
    ------
    KeyError
        When there is no state of a part.
    """
    import torch

    for name, part in parts.items():
        if name not in common and name not in own:
            raise UnknownNameError(
                f"[train] the checkpoint has no part {name!r}, but {', '.join(sorted({*common, *own}))}"
            )
        if isinstance(part, torch.nn.Module):
            part.load_state_dict({**common[name], **own[name]})
        elif isinstance(part, torch.optim.Optimizer):
            part.load_state_dict(common[name])
            _load_into_memory(part)
        else:
            getattr(part, _methods(part)[1])(own[name])


def parameters_of(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of all modules among ``parts``, each once."""
    return list({id(one): one for module in _modules(parts) for one in module.parameters()}.values())


def buffers_of(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the buffers of all modules among ``parts``, each once."""
    return list({id(one): one for module in _modules(parts) for one in module.buffers()}.values())


def _modules(parts: Mapping[str, Any]) -> list[torch.nn.Module]:
    import torch

    return [part for part in parts.values() if isinstance(part, torch.nn.Module)]


def _methods(part: Any) -> tuple[str, str]:
    import torch

    is_generator = isinstance(part, torch.Generator)
    return ("get_state", "set_state") if is_generator else ("state_dict", "load_state_dict")


def _load_into_memory(optimizer: torch.optim.Optimizer) -> None:
    """Copy optimizer states from mapped files to memory, except those of offloaded parameters."""
    import torch

    for parameter, state in optimizer.state.items():
        if type(parameter.data) is torch.Tensor:
            state.update(
                {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
            )


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
        raise ArgumentError(f"[train] name={name!r}: give the name of one folder in {storage}")
    folder = user_path(storage, "train").absolute() / name
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
        raise ArgumentError(
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


COMMON: Final = "common.pt"
"""Parameters and optimizers; written by rank 0."""


@final
@dataclass(slots=True)
class Position:
    """Progress of one rank."""

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
    write_state(
        _rank_file(folder, rank),
        {"position": _position_state(position), "parts": own, "generators": generators},
    )


def restore(folder: Path, rank: int, parts: Mapping[str, Any], *, generators: bool = True) -> Position:
    """Bring ``parts``, and the process's random generators, to where a rank was; return how far that was.

    Raises
    ------
    StoreError
        When the files cannot be read.
    KeyError
        When they have no state of a part.
    """
    own = read_state(_rank_file(folder, rank))
    load_parts(parts, read_state(folder / COMMON, in_place=True), own["parts"])
    if generators:
        set_generator_states(own["generators"])
    return Position(**own["position"])


def position_of(folder: Path, rank: int) -> Position:
    """Return how far a rank was, as ``restore`` does, and change nothing."""
    return Position(**read_state(_rank_file(folder, rank))["position"])


def check_ranks(folder: Path, count: int) -> None:
    """Raise ``ValueError`` when the checkpoint ``folder`` is of another number of ranks than ``count``."""
    before = position_of(folder, 0).ranks
    if before != count:
        raise ArgumentError(
            f"[train] {folder} is of {before} ranks, and now there are {count}: ranks go on as they were, so"
            f" give ranks={before}, or another name= to begin anew"
        )


def last_checkpoint(run: Path) -> Path | None:
    """Return the folder of the last checkpoint that this machine sees of a training, if it sees any."""
    return max((each for each in run.glob("step-*") if _rank_file(each, 0).is_file()), default=None)


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.pt"


def _position_state(position: Position) -> dict[str, Any]:
    return {"step": position.step, "ranks": position.ranks, "notes": position.notes}
