"""Checkpoints: the state of a training in one file, from which it goes on bit by bit as if never interrupted.

The file is in the safetensors format: the tensors, and the rest as JSON among its metadata. Nothing in it is
executed when it is read.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from accelera.errors import ArgumentError, StoreFormatError
from accelera.tensora.core import Tensor
from accelera.tensora.random import Generator
from accelera.tensora.serialization.files import (
    TensorFile,
    header_of,
    in_file_order,
    misfits,
    replaced,
    write_elements,
)
from accelera.tensora.serialization.memory import fill, first_names
from accelera.tensora.state_kinds import is_alike, kind_of

_VERSION = 1
_MARK = "accelera_checkpoint"
_UNSIGNED = "0" * 64
_PIECE = 4 << 20


def save_checkpoint(
    path: str | os.PathLike[str], *, extra: dict[str, Any] | None = None, **parts: Any
) -> None:
    """Write the state of a training to a file.

    The file appears when it is complete and on the disk; what was there before stays until then. Tensors are
    written one after the other, with at most 4 MiB beside them.

    Parameters
    ----------
    path
        Of the file, usually with the suffix ``.safetensors``.
    extra
        Anything of None, booleans, numbers, strings, lists, tuples, dictionaries and tensors.
    **parts
        ``model=``, ``optimizer=``, ``scheduler=``, ``loader=``, ``generator=`` and so on: what has
        ``state_dict()`` and ``load_state_dict()``, or is a `random.Generator`. Give
        ``random.default_generator`` if dropout or the order of samples come from it.

    Raises
    ------
    TypeError
        If a part has no state, or something in it is of another kind than said above.
    StoreError
        If the file cannot be written.

    Examples
    --------
    >>> save_checkpoint("run.safetensors", model=model, optimizer=optimizer,
    ...     generator=random.default_generator, extra={"epoch": 3})                      # doctest: +SKIP
    >>> epoch = load_checkpoint("run.safetensors", model=model, optimizer=optimizer,
    ...     generator=random.default_generator)["epoch"]                                 # doctest: +SKIP

    """
    packer = _Packer()
    trees = {name: packer.packed_part(name, part) for name, part in parts.items()}
    kinds = {name: type(part).__name__ for name, part in parts.items() if not _is_module(part)}
    state = {"parts": trees, "kinds": kinds, "extra": packer.packed(extra or {}, "extra")}
    tensors = in_file_order(packer.tensors)
    text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    # The checksum is the first of the metadata, so the first place where its zeros are found.
    header = header_of(tensors, {"checksum": _UNSIGNED, _MARK: str(_VERSION), "state": text})
    digest = hashlib.sha256(header)
    with replaced(path) as file:

        def write(piece: memoryview) -> None:
            digest.update(piece)
            file.write(piece)

        file.write(header)
        write_elements(write, tensors)
        file.seek(header.index(_UNSIGNED.encode()))
        file.write(digest.hexdigest().encode())


def load_checkpoint(path: str | os.PathLike[str], **parts: Any) -> dict[str, Any]:
    """Set a training to the state that a file has.

    All of the file is checked first. Nothing is changed if it is damaged, or is of another training; parts
    that are not given stay as they are, so a model can be taken from it alone.

    Parameters
    ----------
    path
        Of a file by `save_checkpoint`.
    **parts
        As for `save_checkpoint`, of the same names.

    Returns
    -------
    dict
        The ``extra`` that was saved.

    Raises
    ------
    StoreError
        If the file cannot be read; StoreFormatError if it is damaged, or no checkpoint.
    ArgumentError
        If the file has no such part, or a part is of another class, or has tensors of other names or shapes.

    """
    file = TensorFile(path, writable=True)
    saved, kinds, extra = _verified_state(file)
    absent = sorted(parts.keys() - saved.keys())
    if absent:
        raise ArgumentError(
            f"[load_checkpoint] {path} has no part {', '.join(absent)}; it has {', '.join(saved)}"
        )
    trees = {name: saved[name] for name in parts}
    faults = [
        fault
        for name, part in parts.items()
        for fault in _mismatches(name, part, trees[name], kinds.get(name))
    ]
    if faults:
        raise ArgumentError(f"[load_checkpoint] {path} is of another training: {'; '.join(faults[:20])}")
    _restore({name: (part, trees[name]) for name, part in parts.items()})
    return extra


# --- the file ---------------------------------------------------------------------------------------------


def _verified_state(file: TensorFile) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return the parts, their classes and `extra` of a checkpoint, after checking version and checksum."""
    version, checksum = file.metadata.get(_MARK), file.metadata.get("checksum", "")
    if version is None:
        raise StoreFormatError(
            f"[load_checkpoint] {file.path} holds tensors, but is no checkpoint; use load_file or load_model"
        )
    if version != str(_VERSION):
        raise StoreFormatError(
            f"[load_checkpoint] {file.path} has version {version}, and version {_VERSION} is read here; "
            "use the release that wrote it"
        )
    if _checksum(file, checksum) != checksum:
        raise StoreFormatError(
            f"[load_checkpoint] {file.path} is damaged: its bytes do not have the checksum that was written; "
            "take an earlier checkpoint"
        )
    try:
        state = json.loads(file.metadata["state"])
        parts = {name: _unpacked(tree, file) for name, tree in state["parts"].items()}
        return parts, dict(state.get("kinds", {})), dict(_unpacked(state["extra"], file))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StoreFormatError(
            f"[load_checkpoint] {file.path} was not written by save_checkpoint: {error!r:.200}"
        ) from error


def _checksum(file: TensorFile, written: str) -> str:
    header = file.buffer[: file.data_begin]
    digest = hashlib.sha256(header.replace(written.encode(), _UNSIGNED.encode(), 1))
    for begin in range(file.data_begin, len(file.buffer), _PIECE):
        digest.update(file.buffer[begin : begin + _PIECE])
    return digest.hexdigest()


# --- states as JSON and tensors ---------------------------------------------------------------------------


def _is_module(part: Any) -> bool:
    return hasattr(part, "named_parameters")


def _state_of(name: str, part: Any) -> Any:
    if isinstance(part, Generator):
        return part.state
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise ArgumentError(
            f"[checkpoint] {name}= is a {type(part).__name__} without state_dict and load_state_dict; "
            "give what has both, or put its values in extra="
        )
    return part.state_dict()


class _Packer:
    """Converter of states to JSON trees; it collects their tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def packed_part(self, name: str, part: Any) -> Any:
        """Return the tree of a part; tensors of a module with the same memory are stored once."""
        state = _state_of(name, part)
        if not _is_module(part):
            return self.packed(state, name)
        kept = first_names(state)
        names = {each: self._named(state[each], f"{name}.{each}") for each in dict.fromkeys(kept.values())}
        return {"dict": [[each, {"tensor": names[kept[each]]}] for each in state]}

    def packed(self, value: Any, place: str) -> Any:
        """Return the tree of a value; `place` is its path, for names of tensors and errors."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return {"tensor": self._named(value, place)}
        if isinstance(value, (list, tuple)):
            items = [self.packed(each, f"{place}.{i}") for i, each in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        if isinstance(value, dict):
            kind = "counter" if isinstance(value, collections.Counter) else "dict"
            return {kind: [self._pair(key, each, place) for key, each in value.items()]}
        raise ArgumentError(
            f"[save_checkpoint] {place} is a {type(value).__name__}, which a checkpoint does not hold; "
            "make it numbers, strings, lists, tuples, dictionaries or tensors"
        )

    def _pair(self, key: Any, value: Any, place: str) -> list[Any]:
        return [self.packed(key, f"{place}[key]"), self.packed(value, f"{place}.{key}")]

    def _named(self, tensor: Any, place: str) -> str:
        name, number = place, 2
        while name in self.tensors:
            name, number = f"{place}#{number}", number + 1
        self.tensors[name] = tensor
        return name


def _unpacked(tree: Any, file: TensorFile) -> Any:
    """Return the value of a tree; its tensors are views of the mapped file."""
    if isinstance(tree, list):
        return [_unpacked(each, file) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    return _KINDS[kind](content, file)


def _unpacked_items(content: list[list[Any]], file: TensorFile) -> dict[Any, Any]:
    return {_unpacked(key, file): _unpacked(value, file) for key, value in content}


_KINDS: dict[str, Callable[[Any, TensorFile], Any]] = {
    "tensor": lambda content, file: file.tensor(content),
    "tuple": lambda content, file: tuple(_unpacked(each, file) for each in content),
    "dict": _unpacked_items,
    "counter": lambda content, file: collections.Counter(_unpacked_items(content, file)),
}


# --- restoring --------------------------------------------------------------------------------------------


def _mismatches(name: str, part: Any, tree: Any, kind: str | None) -> list[str]:
    """Return messages about each reason why a part cannot load a state of class `kind` (None: unknown)."""
    if kind not in (None, type(part).__name__) and not _is_module(part):
        return [f"{name} was of class {kind}, and is of {type(part).__name__}"]
    state = _state_of(name, part)
    if isinstance(part, Generator):
        sound = isinstance(tree, tuple) and len(tree) == 2
        return [] if sound else [f"{name} was no generator"]
    if not isinstance(tree, Mapping):
        return [f"{name} was a generator"]
    if not _is_module(part):
        return _optimizer_mismatches(name, part, tree) if hasattr(part, "param_groups") else []
    faults = [f"{name} has {each!r}, the file has not" for each in state if each not in tree]
    faults += [f"the file has {each!r} of {name}, which has not" for each in tree if each not in state]
    given = {each: tensor for each, tensor in tree.items() if each in state}
    others = [each for each, tensor in given.items() if not isinstance(tensor, Tensor)]
    if others:
        return [*faults, f"{name} was no module"]
    return faults + [f"{fault} in {name}" for fault in misfits(state, given)]


def _optimizer_mismatches(name: str, part: Any, tree: Mapping[Any, Any]) -> list[str]:
    """Return messages about each reason why an optimizer cannot load a state."""
    groups, states, own = tree.get("param_groups"), tree.get("state"), part.param_groups
    if not isinstance(groups, list) or not isinstance(states, Mapping):
        return [f"{name} was no optimizer"]
    if not all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups):
        return [f"the groups of {name} are damaged"]
    saved_sizes, sizes = ([len(group["params"]) for group in each] for each in (groups, own))
    if saved_sizes != sizes:
        return [f"{name} had groups of {saved_sizes} parameters, and has groups of {sizes}"]
    faults = [
        f"option {option!r} of {name} is {value!r:.40}"
        for group, mine in zip(groups, own, strict=True)
        for option, value in group.items()
        if option != "params" and not (option in mine and is_alike(value, mine[option]))
    ]
    return faults + _state_mismatches(name, part, states)


def _state_mismatches(name: str, part: Any, states: Mapping[Any, Any]) -> list[str]:
    """Return messages about states whose names and kinds are not those of the optimizer's own states."""
    if not all(isinstance(state, Mapping) for state in states.values()):
        return [f"the states of {name} are damaged"]
    own = next(iter(part.state.values()), None)
    first = next(iter(states.values()), {}) if own is None else own
    kinds = {key: kind_of(value) for key, value in first.items()}
    wrong = [
        f"the state of parameter {number} of {name} has {', '.join(map(str, state))}"
        for number, state in states.items()
        if {key: kind_of(value) for key, value in state.items()} != kinds
    ]
    return wrong[:1]


def _restore(parts: dict[str, tuple[Any, Any]]) -> None:
    """Load the states of all parts, or of none if one fails.

    Optimizers are loaded first, as they may raise; modules last, as their shapes were checked.
    """
    modules = [pair for pair in parts.values() if _is_module(pair[0])]
    others = [(name, *pair) for name, pair in parts.items() if not _is_module(pair[0])]
    done: list[tuple[Any, Any]] = []
    try:
        for name, part, tree in sorted(others, key=lambda item: not hasattr(item[1], "param_groups")):
            done.append((part, _state_of(name, part)))
            _load_state(part, tree)
    except BaseException:
        for part, before in reversed(done):
            _load_state(part, before)
        raise
    for part, tree in modules:
        state = part.state_dict()
        for each, tensor in tree.items():
            fill(state[each], tensor)


def _load_state(part: Any, state: Any) -> None:
    if isinstance(part, Generator):
        part.state = state
    else:
        part.load_state_dict(state)
