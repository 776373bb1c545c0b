"""Backend in Python alone: works with any torch that hands out its kernels."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

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
from accelera.interceptor.hooks.operators import OPERATORS, Rule, is_composite, is_in_place


def fault() -> str | None:
    """Return why this backend cannot be used here; None when it can."""
    if hasattr(torch.library, "get_kernel"):
        return None
    return f"torch {torch.__version__} does not hand out its kernels, which takes torch.library.get_kernel"


Called = Callable[..., Any]

_RETAINED_KERNELS = 4096
"""Number of unregistered kernels kept alive: another thread may be about to enter one."""


class PythonBackend:
    """Kernels in Python, by ``torch.library``."""

    name = "python"

    def __init__(self) -> None:
        self._libraries: list[Any] = []
        self._retained: deque[Any] = deque(maxlen=_RETAINED_KERNELS)

    def set_thresholds(self, least_bytes: int, least_size: int) -> None:
        """Do nothing: the kernels look at what is in force."""

    def register(self, names: Sequence[str]) -> None:
        """Put our kernels before torch's, quietly."""
        library = self._open()
        with _quiet():
            for name in names:
                calls = _torch_kernels(name, keys_of(name))
                replaced[name] = _by_device(calls)
                self._put(library, name, calls)

    def register_at(self, names: Sequence[str], keys: Sequence[str]) -> None:
        """Put our kernels before torch's at some of an operator's keys only."""
        library = self._open()
        with _quiet():
            for name in names:
                self._put(library, name, _torch_kernels(name, keys))

    def kernel(self, name: str, key: str) -> Called:
        """Return the kernel that would be put before torch's at ``key``, without putting it there."""
        return _kernel(name, _torch_kernels(name, [key])[key])

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
            self._retained.append(torch.library.get_kernel(f"aten::{name}", key))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from warning that a kernel is replaced, which is the purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel.*")
        yield


def _torch_kernels(name: str, keys: Sequence[str]) -> dict[str, Called]:
    """Return calls of torch's own kernels by key."""
    kernels = {key: torch.library.get_kernel(f"aten::{name}", key) for key in keys}
    return {key: taking_numbers(name, key, kernel) for key, kernel in kernels.items()}


def _kernel(name: str, before: Called) -> Called:
    """Return the kernel that hands over what is worthwhile and calls ``before`` for the rest."""
    rule = None if is_in_place(name) else OPERATORS[name]
    passes_at = COMPOSITES if is_composite(name) else EVERYTHING

    def called(*args: Any, **kwargs: Any) -> Any:
        active = armed()
        if not _is_long_enough(args, active.least_size) or level() >= passes_at:
            return before(*args, **kwargs)
        operands = [each for each in args if isinstance(each, Tensor)]
        if not _is_worthwhile(rule, operands, active.least_bytes):
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


_ORDINARY = (Tensor, Parameter)


def _is_long_enough(args: Sequence[object], least_size: int) -> bool:
    """Return whether some tensor among ``args`` has a long enough dimension; decides most small calls.

    Sizes that may be symbolic are not compared: a call with such a tensor is never long enough.
    """
    reached = least_size <= 1
    for each in args:
        if isinstance(each, Tensor):
            if type(each) not in _ORDINARY and _is_dispatched_to_python(each):
                return False
            for size in each.shape:
                reached = reached or size >= least_size
    return reached


def _is_worthwhile(rule: Rule | None, operands: Sequence[Tensor], least_bytes: int) -> bool:
    """Return whether a call has enough bytes and ordinary tensors only, as ``csrc/torch/size_filter.h`` does.

    Parameters
    ----------
    rule
        How the result follows from the operands; None when it is one of them.
    operands
        Tensor arguments in order, without ``out``.
    least_bytes
        Bytes of operands and result together.
    """
    return _call_bytes(rule, operands) >= least_bytes and all(map(_is_plain, operands))


def _call_bytes(rule: Rule | None, operands: Sequence[Tensor]) -> int:
    """Return the bytes of the operands and of the result that ``rule`` says they have.

    Attention counts its scores too. Shapes that do not fit give some number: torch refuses them later.
    """
    taken = sum(each.numel() * each.element_size() for each in operands)
    widest = max((each.element_size() for each in operands), default=0)
    return taken if rule is None else taken + _RESULTS[rule](operands) * widest


def _is_dispatched_to_python(tensor: Tensor) -> bool:
    python: bool = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    return python


def _is_plain(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _broadcast(operands: Sequence[Tensor]) -> int:
    return _broadcast_shapes([each.shape for each in operands])


def _broadcast_shapes(shapes: Sequence[Sequence[int]]) -> int:
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return math.prod(0 if 0 in sizes else max(sizes) for sizes in columns)


def _product(operands: Sequence[Tensor]) -> int:
    first, second = operands[-2].shape, operands[-1].shape
    rows = math.prod(first[-2:-1])
    columns = second[-1] if len(second) > 1 else 1
    return _broadcast_shapes([first[:-2], second[:-2]]) * rows * columns


def _attention(operands: Sequence[Tensor]) -> int:
    query, key, value = (each.shape for each in operands[:3])
    if min(len(query), len(key), len(value)) < 2:
        return 0
    return math.prod(query[:-1]) * (key[-2] + value[-1])


def _heads(operands: Sequence[Tensor]) -> int:
    """Bound the scores of several heads, of which there are at most as many as columns."""
    query = operands[0].shape
    return _attention(operands) * query[-1] if query else 0


_RESULTS = {"pointwise": _broadcast, "product": _product, "attention": _attention, "heads": _heads}


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
    wrapping = _number_wrapper(name, key, lambda *args, **kwargs: boxed(keys, *args, **kwargs))

    def call(*args: Any, **kwargs: Any) -> Any:
        for at in positions:
            if not isinstance(args[at], Tensor):
                return wrapping(*args, **kwargs)
        return boxed(keys, *args, **kwargs)

    return call


def _number_wrapper(name: str, key: str, inner: Called) -> Called:
    """Return an operator in ``prims`` that calls ``inner``; never removed, as other threads may run it."""
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
