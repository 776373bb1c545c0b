"""Recomputation of values of a tape: the operations between what is there and what is wanted, run again."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from accelera.offload.op_schema import each_tensor
from accelera.offload.training.tape import External, ForwardTape, TapeOperation, View, is_ordinary

Storage = torch.UntypedStorage


def recomputed(
    tape: ForwardTape, wanted: int, find: Callable[[int], Storage | None], keep: Container[int]
) -> dict[int, Storage]:
    """Return the storages of the value ``wanted`` and of those in ``keep`` that are made on the way.

    ``find`` returns the storage of a value that is there. Raises RuntimeError when something from outside
    that an operation read was changed in place since.
    """
    values, indices = _needed(tape, wanted, find)
    shared = set(values)
    last_reads = _last_reads(tape, indices)
    kept: dict[int, Storage] = {}
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), _without_autocast():
        for index in indices:
            operation = _operation(tape, index)
            for value in operation.changes:
                if value in shared or value in keep:
                    values[value] = values[value].clone()  # type: ignore[no-untyped-call]
            _run(operation, values)
            for value in operation.makes:
                if value == wanted or value in keep:
                    kept[value] = values[value]
            for value in operation.reads:
                if last_reads[value] == index:
                    values.pop(value, None)
    return kept


def _needed(
    tape: ForwardTape, wanted: int, find: Callable[[int], Storage | None]
) -> tuple[dict[int, Storage], list[int]]:
    """Return the values to begin with, and the operations to carry out, in their order."""
    values: dict[int, Storage] = {}
    operations: set[int] = set()
    left = [wanted]
    while left:
        value = left.pop()
        if value in values or tape.producers[value] in operations:
            continue
        storage = find(value)
        if storage is not None:
            values[value] = storage
            continue
        index = tape.producers[value]
        operations.add(index)
        left.extend(_operation(tape, index).reads)
    return values, sorted(operations)


def _last_reads(tape: ForwardTape, indices: list[int]) -> dict[int, int]:
    return {value: index for index in indices for value in _operation(tape, index).reads}


def _operation(tape: ForwardTape, index: int) -> TapeOperation:
    operation = tape.operations[index] if index >= 0 else None
    if operation is None or not operation.pure:
        name = "an operation that was not seen" if operation is None else tape.names[index]
        raise RuntimeError(
            f"[offload] a value of {name} is needed again and cannot be computed again; offload the model "
            "with activations='offload'"
        )
    return operation


def _run(operation: TapeOperation, values: dict[int, Storage]) -> None:
    """Carry out ``operation`` and enter what it makes in ``values``."""
    args, kwargs = _shown(operation.args, values), _shown(operation.kwargs, values)
    known = {tensor.untyped_storage()._cdata for tensor in each_tensor(args, kwargs) if is_ordinary(tensor)}
    result = operation.func(*args, **kwargs)
    new: dict[int, Storage] = {}
    for tensor in each_tensor((result,), {}):
        if is_ordinary(tensor) and tensor.untyped_storage()._cdata not in known:
            new.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage())
    follow = [values[value] for value in operation.changes]
    values.update(zip(operation.makes, (*new.values(), *follow), strict=True))


def _shown(noted: Any, values: dict[int, Storage]) -> Any:
    """Return arguments with ordinary tensors for what was written down of them."""
    if isinstance(noted, View):
        return noted.of(values[noted.value])
    if isinstance(noted, External):
        return _unchanged(noted)
    if isinstance(noted, dict):
        return {name: _shown(value, values) for name, value in noted.items()}
    if isinstance(noted, tuple):
        return tuple(_shown(value, values) for value in noted)
    if isinstance(noted, list):
        return [_shown(value, values) for value in noted]
    return noted


def _unchanged(external: External) -> torch.Tensor:
    tensor = external.tensor
    if tensor._version != external.version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version "
            f"{external.version} instead. It is needed to compute activations again; offload the model with "
            "activations='offload' to keep them instead."
        )
    return tensor


def _without_autocast() -> AbstractContextManager[Any]:
    """Return a context in which nothing is cast: the tape has the casts."""
    devices = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    stack = ExitStack()
    for kind in devices:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
