"""Operators of our own namespace, through which compiled kernels reach the handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from accelera.interceptor.mechanism.handling import handle
from accelera.interceptor.mechanism.operators import is_above_autograd
from accelera.interceptor.mechanism.originals import overload

NAMESPACE = "accelera_route"

_library: list[Any] = []
_open: set[str] = set()


def open_routes(names: Iterable[str]) -> None:
    """Define ``accelera_route::<name>`` with the schema of ``aten::<name>``; once opened they stay."""
    if not _library:
        _library.append(torch.library.Library(NAMESPACE, "DEF"))  # type: ignore[no-untyped-call]
    for name in names:
        if name not in _open:
            _open.add(name)
            _library[0].define(str(overload(name)._schema).removeprefix("aten::"))
            _library[0].impl(name, _route(name), _key(name))


def _route(name: str) -> Callable[..., Any]:
    def routed(*args: Any, **kwargs: Any) -> Any:
        return handle(name, args, kwargs)

    return routed


def _key(name: str) -> str:
    return "CompositeImplicitAutograd" if is_above_autograd(name) else "CompositeExplicitAutograd"
