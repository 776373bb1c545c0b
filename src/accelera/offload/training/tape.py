"""Tape of a forward pass: which operation made each value, so that a value can be computed again.

A *value* is the contents of a storage between two writes: an operation that makes a storage makes a value,
and one that changes a storage in place makes the next value of it. Views are no values; an operand says which
part of its value it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from accelera.errors import StateError
from accelera.offload.op_schema import each_tensor, is_plain, schema_of

Storage = torch.UntypedStorage

_UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")

_HIDDEN_STATE = ("cudnn_batch_norm", "miopen_batch_norm", "rrelu_with_noise")
"""Operations that change an argument although their schema does not say so."""


class View(NamedTuple):
    """The part of a value that a tensor sees."""

    value: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """In elements, from the beginning of the storage."""
    conjugated: bool = False
    """Whether it shows the conjugates of what is stored: ``is_conj()``."""
    negative: bool = False
    """Whether it shows the negatives of what is stored: ``is_neg()``."""

    def of(self, storage: Storage) -> torch.Tensor:
        """Return the tensor that sees this part of ``storage``."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return self.marked(empty.set_(storage, self.offset, self.sizes, self.strides))

    def marked(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` with the conjugate and negative bits of this view."""
        if self.conjugated:
            torch._C._set_conj(tensor, True)
        if self.negative:
            torch._C._set_neg(tensor, True)
        return tensor


class External(NamedTuple):
    """An operand that the pass did not make: an input, a buffer, a weight."""

    tensor: torch.Tensor
    version: int


@dataclass
class TapeOperation:
    """One operation of the tape."""

    func: Any
    args: tuple[Any, ...]
    """Arguments, in which ``View`` and ``External`` stand for tensors."""
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    """Values that it needs, those that it changes included."""
    makes: tuple[int, ...]
    """Values that it makes: new storages in order, then those changed in place."""
    changes: tuple[int, ...]
    """Values that it changes in place; the last of ``makes`` follow them."""
    pure: bool
    """Whether carrying it out again on the same operands gives the same and does nothing else."""
    seconds: float = 0.0
    span: tuple[int, int] = (0, 0)
    """Positions before and after it, as ``mark`` of the tape gave them."""


@dataclass(slots=True)
class _StorageValue:
    """The value that a storage holds now."""

    value: int
    storage: StorageWeakRef
    """While this is held, no other storage gets the same address."""


@final
class ForwardTape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the operations on ordinary tensors in its context.

    ``clock`` returns the seconds that were spent on operations so far, ``mark`` a position in somebody else's
    notes.
    """

    def __init__(self, clock: Callable[[], float], mark: Callable[[], int] = lambda: 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[TapeOperation] = []
        self.names: list[str] = []
        """Name of each operation."""
        self.nbytes: list[int] = []
        """Bytes of each value's storage."""
        self.producers: list[int] = []
        """The operation that made each value; -1 for one that appeared."""
        self._clock = clock
        self._mark = mark
        self._paused = False
        self.unstable: set[int] = set()
        """Storages from outside that the pass changes, by address."""
        self._values_by_storage: dict[int, _StorageValue] = {}
        self._storage_of_value: dict[int, _StorageValue] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out ``func`` and write it down; called by torch."""
        kwargs = kwargs or {}
        traits = _traits(func)
        if traits.is_view or self._paused:
            return func(*args, **kwargs)
        # Before it is carried out: in place it may give a storage its next value.
        noted = self._symbolic_arguments(args, kwargs)
        began_s, before = self._clock(), self._mark()
        result = func(*args, **kwargs)
        operation = self._record(func, traits, args, kwargs, result, noted)
        if operation is not None:
            operation.seconds = self._clock() - began_s
            operation.span = before, self._mark()
        return result

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing down of what is done in this context."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def value_of(self, tensor: torch.Tensor) -> int:
        """Return the value that ``tensor`` sees; one that no operation made appears now."""
        storage = tensor.untyped_storage()
        known = self._values_by_storage.get(storage._cdata)
        return self._new_value(storage, -1) if known is None else known.value

    def view_of(self, tensor: torch.Tensor) -> View:
        """Return what ``tensor`` sees of its value."""
        return View(
            self.value_of(tensor),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _symbolic_arguments(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        written = tuple(self._symbolic(value) for value in args)
        return written, {name: self._symbolic(value) for name, value in kwargs.items()}

    def _symbolic(self, value: Any) -> Any:
        """Return an argument with ``View`` and ``External`` in place of tensors."""
        if isinstance(value, (list, tuple)):
            return [self._symbolic(one) for one in value]
        if not isinstance(value, torch.Tensor):
            return value
        if is_ordinary(value) and value.untyped_storage()._cdata in self._values_by_storage:
            return self.view_of(value)
        return External(value, value._version)

    def _record(
        self, func: Any, traits: _Traits, args: Any, kwargs: Any, result: Any, noted: Any
    ) -> TapeOperation | None:
        """Enter an operation that makes or changes something, and return it."""
        index = len(self.names)
        if traits.name == "native_batch_norm" and args[5]:
            noted = self._without_running_statistics(args, noted)
        changes, outside = self._changes(func, traits, args, kwargs)
        new = [self._new_value(each, index) for each in self._new_storages(result)]
        if not new and not changes and not outside:
            return None
        follow = [self._next_value(value, index) for value in changes]
        self.names.append(traits.name)
        reads = tuple({view.value for view in views_in(noted)} | set(changes))
        pure = traits.pure and not outside
        made = TapeOperation(func, noted[0], noted[1], reads, (*new, *follow), tuple(changes), pure)
        self.operations.append(made)
        return made

    def _changes(self, func: Any, traits: _Traits, args: Any, kwargs: Any) -> tuple[list[int], bool]:
        """Return the values that change in place, and whether something outside of the tape does."""
        if not traits.writes:
            return [], False
        changed, outside = dict[int, None](), False
        for tensor in each_tensor(schema_of(func).changed(args, kwargs), {}):
            known = (
                self._values_by_storage.get(tensor.untyped_storage()._cdata) if is_ordinary(tensor) else None
            )
            if known is None:
                outside = True
                if is_ordinary(tensor):
                    self.unstable.add(tensor.untyped_storage()._cdata)
            else:
                changed[known.value] = None
        return list(changed), outside

    def _without_running_statistics(self, args: Any, noted: Any) -> Any:
        """Return a training batch norm's arguments without running statistics: a rerun changes nothing.

        Its schema does not say that it writes the running statistics.
        """
        for tensor in args[3:5]:
            if tensor is not None and is_ordinary(tensor):
                self.unstable.add(tensor.untyped_storage()._cdata)
        given, named = noted
        return (*given[:3], None, None, *given[5:]), named

    def _new_storages(self, result: Any) -> Iterator[Storage]:
        """Go through the storages that an operation made."""
        seen = set()
        for tensor in each_tensor((result,), {}):
            if is_ordinary(tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._values_by_storage and storage._cdata not in seen:
                    seen.add(storage._cdata)
                    yield storage

    def _new_value(self, storage: Storage, producer: int) -> int:
        value = len(self.nbytes)
        self.nbytes.append(storage.nbytes())
        self.producers.append(producer)
        known = _StorageValue(value, StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        self._values_by_storage[storage._cdata] = self._storage_of_value[value] = known
        return value

    def _next_value(self, value: int, producer: int) -> int:
        """Return the next value of the storage of ``value``."""
        known = self._storage_of_value.pop(value)
        known.value = len(self.nbytes)
        self._storage_of_value[known.value] = known
        self.nbytes.append(self.nbytes[value])
        self.producers.append(producer)
        return known.value


def reads_unstable(operation: TapeOperation, unstable: set[int]) -> bool:
    """Return whether ``operation`` reads an external storage that the pass changes."""
    externals = [each.tensor for each in _externals_in(operation) if is_ordinary(each.tensor)]
    return any(each.untyped_storage()._cdata in unstable for each in externals)


def _externals_in(noted: Any) -> Iterator[External]:
    if isinstance(noted, TapeOperation):
        yield from _externals_in((noted.args, noted.kwargs))
    elif isinstance(noted, External):
        yield noted
    elif isinstance(noted, dict):
        for value in noted.values():
            yield from _externals_in(value)
    elif isinstance(noted, (list, tuple)) and not isinstance(noted, View):
        for value in noted:
            yield from _externals_in(value)


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` has a real storage: not offloaded, and of no other subclass."""
    kind = type(tensor)
    return is_plain(tensor) or (kind in _PARAMETERS and tensor.layout == torch.strided)


_PARAMETERS = (torch.nn.Parameter, torch.nn.Buffer)


def views_in(noted: Any) -> Iterator[View]:
    """Yield the views among recorded arguments."""
    if isinstance(noted, View):
        yield noted
    elif isinstance(noted, External):
        return
    elif isinstance(noted, dict):
        for value in noted.values():
            yield from views_in(value)
    elif isinstance(noted, (list, tuple)):
        for value in noted:
            yield from views_in(value)


class _Traits(NamedTuple):
    name: str
    is_view: bool
    writes: bool
    pure: bool


@cache
def _traits(func: Any) -> _Traits:
    schema = schema_of(func)
    name = func.overloadpacket.__name__
    random = any(tag in func.tags for tag in _NOT_REPEATABLE)
    return _Traits(
        name=name,
        is_view=schema.is_view,
        writes=bool(schema.written),
        pure=not random and name not in _UNINITIALIZED and name not in _HIDDEN_STATE,
    )


def _tags(names: Iterable[str]) -> tuple[torch.Tag, ...]:
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


_NOT_REPEATABLE = _tags(("nondeterministic_seeded", "nondeterministic_bitwise"))


def recomputed(
    tape: ForwardTape, wanted: int, find: Callable[[int], Storage | None], keep: Container[int]
) -> dict[int, Storage]:
    """Return the storages of the value ``wanted`` and of those in ``keep`` that are made on the way.

    ``find`` returns the storage of a value that is there. Raises RuntimeError when something from outside
    that an operation read was changed in place since.
    """
    values, indices = _recomputation_plan(tape, wanted, find)
    shared = set(values)
    last_reads = _last_reads(tape, indices)
    kept: dict[int, Storage] = {}
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), _without_autocast():
        for index in indices:
            operation = _repeatable_operation(tape, index)
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


def _recomputation_plan(
    tape: ForwardTape, wanted: int, find: Callable[[int], Storage | None]
) -> tuple[dict[int, Storage], list[int]]:
    """Return the available values to start from, and the operations to rerun, in order."""
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
        left.extend(_repeatable_operation(tape, index).reads)
    return values, sorted(operations)


def _last_reads(tape: ForwardTape, indices: list[int]) -> dict[int, int]:
    return {value: index for index in indices for value in _repeatable_operation(tape, index).reads}


def _repeatable_operation(tape: ForwardTape, index: int) -> TapeOperation:
    operation = tape.operations[index] if index >= 0 else None
    if operation is None or not operation.pure:
        name = "an operation that was not seen" if operation is None else tape.names[index]
        raise StateError(
            f"[offload] a value of {name} is needed again and cannot be computed again; offload the model "
            "with activations='offload'"
        )
    return operation


def _run(operation: TapeOperation, values: dict[int, Storage]) -> None:
    """Carry out ``operation`` and enter what it makes in ``values``."""
    args, kwargs = _bind_storages(operation.args, values), _bind_storages(operation.kwargs, values)
    known = {tensor.untyped_storage()._cdata for tensor in each_tensor(args, kwargs) if is_ordinary(tensor)}
    result = operation.func(*args, **kwargs)
    new: dict[int, Storage] = {}
    for tensor in each_tensor((result,), {}):
        if is_ordinary(tensor) and tensor.untyped_storage()._cdata not in known:
            new.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage())
    follow = [values[value] for value in operation.changes]
    values.update(zip(operation.makes, (*new.values(), *follow), strict=True))


def _bind_storages(noted: Any, values: dict[int, Storage]) -> Any:
    """Return recorded arguments with tensors over ``values`` in place of ``View`` and ``External``."""
    if isinstance(noted, View):
        return noted.of(values[noted.value])
    if isinstance(noted, External):
        return _unchanged(noted)
    if isinstance(noted, dict):
        return {name: _bind_storages(value, values) for name, value in noted.items()}
    if isinstance(noted, tuple):
        return tuple(_bind_storages(value, values) for value in noted)
    if isinstance(noted, list):
        return [_bind_storages(value, values) for value in noted]
    return noted


def _unchanged(external: External) -> torch.Tensor:
    tensor = external.tensor
    if tensor._version != external.version:
        raise StateError(
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
