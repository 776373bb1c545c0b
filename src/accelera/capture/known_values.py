"""Values of fake tensors that follow from the inputs alone, for models that ask for them.

Vision-language models count their image tokens and skip empty images, and others read sizes from a tensor:
such questions depend on the inputs, not on weights or activations. Small inputs therefore have an ordinary
tensor beside the fake one, and operations on such operands alone are carried out on both, so that views and
changes in place keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final
from weakref import WeakValueDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_MOST_ELEMENTS = 1 << 20
"""Tensors of more elements have no known value."""

_ATTRIBUTE = "_accelera_known_value"

_RANDOM = torch.Tag.nondeterministic_seeded

_REFUSALS = (RuntimeError, IndexError, ValueError)
"""What torch raises for values that an operation does not accept."""


@final
class _StorageState:
    """Whether the bytes of a storage are those that the program would have."""

    __slots__ = ("__weakref__", "is_right")

    def __init__(self) -> None:
        self.is_right = True


_STATES: WeakValueDictionary[int, _StorageState] = WeakValueDictionary()
"""State of each storage by its address; an owner of the state also owns the storage."""


@final
class KnownValue:
    """The ordinary tensor of a fake one."""

    __slots__ = ("real", "state")

    def __init__(self, real: torch.Tensor) -> None:
        self.real = real
        address = real.untyped_storage()._cdata
        self.state = _STATES.get(address) or _STATES.setdefault(address, _StorageState())


def keep_value(fake: FakeTensor, tensor: torch.Tensor) -> None:
    """Keep the contents of ``tensor`` as the value of ``fake``, unless there are many or none."""
    if has_kept_value(tensor):
        with _ordinary_computation():
            _set_value(fake, tensor.detach().clone())


def has_kept_value(tensor: torch.Tensor) -> bool:
    """Return whether the contents of an input are kept: it is on the CPU and not large."""
    is_on_cpu = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return is_on_cpu and not isinstance(tensor, FakeTensor) and tensor.numel() <= _MOST_ELEMENTS


def is_known(tensor: torch.Tensor) -> bool:
    """Return whether the value of ``tensor`` is known."""
    return _known_value_of(tensor) is not None


def follow(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
    """Carry out an operation of fake tensors on their values, and make its results known.

    Tensors that it writes become unknown where an operand is unknown.
    """
    if _is_repeatable(func) and _are_known(args) and _are_known(kwargs.values()) and _is_small(result):
        try:
            values = evaluated(func, args, kwargs)
        except _REFUSALS:  # the shapes permit what the values do not
            pass
        else:
            for fake, real in zip(_as_list(result), _as_list(values), strict=True):
                if isinstance(fake, FakeTensor):
                    _set_value(fake, real)
            return
    # Most operations are on activations and get no further than here, so nothing is flattened for them.
    for tensor in _written(func, args, kwargs) if func._schema.is_mutable else ():
        value = _known_value_of(tensor)
        if value is not None:
            value.state.is_right = False


def has_known_operands(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether there are operands and all of them are known."""
    has_operands = any(True for _ in _tensors_in((args, kwargs)))
    return has_operands and _are_known(args) and _are_known(kwargs.values())


def _are_known(arguments: Iterable[Any]) -> bool:
    """Return whether the values of all tensors among ``arguments`` are known."""
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if _known_value_of(each) is None:
                return False
        elif isinstance(each, (list, tuple)) and not _are_known(each):
            return False
    return True


def evaluated(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of ``func`` for the values of its operands, all of which are known."""
    real_args, real_kwargs = pytree.tree_map(_real, (args, kwargs))
    if real_kwargs.get("device") is not None:
        real_kwargs["device"] = torch.device("cpu")
    with _ordinary_computation():
        return func(*real_args, **real_kwargs)


@contextmanager
def _ordinary_computation() -> Iterator[None]:
    """Give a context in which tensors are ordinary ones and no gradients are recorded."""
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        yield


def _set_value(fake: FakeTensor, real: torch.Tensor) -> None:
    setattr(fake, _ATTRIBUTE, KnownValue(real))


def _known_value_of(leaf: Any) -> KnownValue | None:
    if not isinstance(leaf, FakeTensor):
        return None
    value: KnownValue | None = leaf.__dict__.get(_ATTRIBUTE)
    if value is not None:
        return value if value.state.is_right else None
    return None if leaf.constant is None else KnownValue(leaf.constant)


def _real(leaf: Any) -> Any:
    value = _known_value_of(leaf)
    return leaf if value is None else value.real


@cache
def _is_repeatable(func: Any) -> bool:
    """Return whether ``func`` gives the same every time: it is neither random nor without contents."""
    return _RANDOM not in func.tags and "empty" not in func._schema.name


def _is_small(result: Any) -> bool:
    return all(isinstance(each, FakeTensor) and each.numel() <= _MOST_ELEMENTS for each in _as_list(result))


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that ``func`` changes in place."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors_in(args[place] if place < len(args) else kwargs.get(argument.name))


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _tensors_in(arguments: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
