"""Backend in Python alone: works with any torch that hands out its kernels."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from accelera.interceptor.hooks.dispatch import (
    COMPOSITES,
    EVERYTHING,
    armed,
    handle,
    keys_of,
    level,
    overload,
    replaced,
)
from accelera.interceptor.hooks.operators import OPERATORS, is_composite, is_in_place
from accelera.interceptor.hooks.size_filter import is_worthwhile, reach


def fault() -> str | None:
    """Return why this way is not open, None when it is."""
    if hasattr(torch.library, "get_kernel"):
        return None
    return f"torch {torch.__version__} does not hand out its kernels, which takes torch.library.get_kernel"


_KEPT = 4096
"""Kernels that outlive their place: another thread may be about to enter one."""


class PythonBackend:
    """Kernels in Python, by ``torch.library``."""

    name = "python"

    def __init__(self) -> None:
        self._libraries: list[Any] = []
        self._entered: deque[Any] = deque(maxlen=_KEPT)

    def set_thresholds(self, least_bytes: int, least_size: int) -> None:
        """Do nothing: the kernels look at what is in force."""

    def register(self, names: Sequence[str]) -> None:
        """Put our kernels before torch's, quietly."""
        library = self._open()
        with _quiet():
            for name in names:
                calls = _before(name, keys_of(name))
                replaced[name] = _by_device(calls)
                self._put(library, name, calls)

    def register_at(self, names: Sequence[str], keys: Sequence[str]) -> None:
        """Put our kernels before torch's at some of an operator's keys only."""
        library = self._open()
        with _quiet():
            for name in names:
                self._put(library, name, _before(name, keys))

    def kernel(self, name: str, key: str) -> Called:
        """Return the kernel that would be put before torch's at ``key``, without putting it there."""
        return _kernel(name, _before(name, [key])[key])

    def unregister(self) -> None:
        """Put torch's kernels back."""
        while self._libraries:
            self._libraries.pop()._destroy()
        replaced.clear()

    def _open(self) -> Any:
        make: Any = torch.library.Library
        self._libraries.append(make("aten", "IMPL"))
        return self._libraries[-1]

    def _put(self, library: Any, name: str, calls: Mapping[str, Called]) -> None:
        for key, before in calls.items():
            library.impl(name, _kernel(name, before), key)
            self._entered.append(torch.library.get_kernel(f"aten::{name}", key))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from warning that a kernel is replaced, which is the purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel.*")
        yield


def _before(name: str, keys: Sequence[str]) -> dict[str, Called]:
    """Return calls of torch's own kernels by key."""
    kernels = {key: torch.library.get_kernel(f"aten::{name}", key) for key in keys}
    return {key: taking_numbers(name, key, kernel) for key, kernel in kernels.items()}


def _kernel(name: str, before: Called) -> Called:
    """Return the kernel that hands over what is worthwhile and calls ``before`` for the rest."""
    rule = None if is_in_place(name) else OPERATORS[name]
    passes_at = COMPOSITES if is_composite(name) else EVERYTHING

    def called(*args: Any, **kwargs: Any) -> Any:
        active = armed()
        if not reach(args, active.least_size) or level() >= passes_at:
            return before(*args, **kwargs)
        operands = [each for each in args if isinstance(each, Tensor)]
        if not is_worthwhile(rule, operands, active.least_bytes):
            return before(*args, **kwargs)
        return handle(name, args, kwargs)

    return called


def _by_device(calls: Mapping[str, Called]) -> Called:
    """Return a call of the kernel for the device of the arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        devices = {each.device.type for each in args if isinstance(each, Tensor)}
        backend = "CPU" if devices <= {"cpu"} else next(key for key in calls if key != "CPU")
        return calls[backend](*args, **kwargs)

    return call


Called = Callable[..., Any]


_library: list[Any] = []
_boxed: dict[str, Called] = {}


def taking_numbers(name: str, key: str, kernel: Any) -> Called:
    """Return a call of ``kernel`` at ``key`` that takes numbers where the operator takes tensors.

    Parameters
    ----------
    name
        The operator, as in ``aten``.
    key
        Dispatch key of the kernel.
    kernel
        What ``torch.library.get_kernel`` gave.
    """
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    boxed = kernel.call_boxed
    schema = overload(name)._schema
    positions = [at for at, each in enumerate(schema.arguments) if _is_operand(each)]
    if len(positions) < 2:
        return lambda *args, **kwargs: boxed(keys, *args, **kwargs)
    wrapping = _wrapping(name, key, lambda *args, **kwargs: boxed(keys, *args, **kwargs))

    def call(*args: Any, **kwargs: Any) -> Any:
        for at in positions:
            if not isinstance(args[at], Tensor):
                return wrapping(*args, **kwargs)
        return boxed(keys, *args, **kwargs)

    return call


def _wrapping(name: str, key: str, inner: Called) -> Called:
    """Return the operator in ``prims`` that calls ``inner``; it stays, as other threads may be in it."""
    ours = f"accelera_{key}_{name.replace('.', '_')}"
    if ours not in _boxed:
        make: Any = torch.library.Library
        _library[:] = _library or [make("prims", "FRAGMENT")]
        _library[0].define(f"{ours}({str(overload(name)._schema).partition('(')[2]}")
        _library[0].impl(
            ours, lambda *args, **kwargs: _boxed[ours](*args, **kwargs), "CompositeExplicitAutograd"
        )
    _boxed[ours] = inner
    operator: Called = getattr(torch.ops.prims, ours).default
    return operator


def _is_operand(argument: Any) -> bool:
    return str(argument.type) == "Tensor" and not argument.kwarg_only
