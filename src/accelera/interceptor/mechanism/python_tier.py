"""Interception in Python alone: works with any torch that hands out its kernels."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from accelera.interceptor.mechanism.handling import handle, in_force
from accelera.interceptor.mechanism.keys import keys_of
from accelera.interceptor.mechanism.operators import OPERATORS, is_composite, is_in_place
from accelera.interceptor.mechanism.originals import replaced
from accelera.interceptor.mechanism.passing import COMPOSITES, EVERYTHING, level
from accelera.interceptor.mechanism.weighing import is_worthwhile, reach
from accelera.interceptor.mechanism.wrapped_numbers import Called, taking_numbers


def fault() -> str | None:
    """Return why this way is not open, None when it is."""
    if hasattr(torch.library, "get_kernel"):
        return None
    return f"torch {torch.__version__} does not hand out its kernels, which takes torch.library.get_kernel"


_KEPT = 4096
"""Kernels that outlive their place: another thread may be about to enter one."""


class PythonTier:
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
        armed = in_force()
        if not reach(args, armed.least_size) or level() >= passes_at:
            return before(*args, **kwargs)
        operands = [each for each in args if isinstance(each, Tensor)]
        if not is_worthwhile(rule, operands, armed.least_bytes):
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
