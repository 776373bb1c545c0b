"""Numbers that torch wraps as tensors, such as the 1 of ``x + 1``, kept what they are.

A kernel in Python is handed them as plain numbers, which the kernel before it does not take. Operators in
the namespace ``prims`` wrap them again as torch does; a tensor made here would be promoted differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from accelera.interceptor.mechanism.originals import overload

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
