"""Exceptions of Python on their way through C functions, which would lose them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

_MOST_ON_THEIR_WAY = 64

_on_their_way: dict[type[BaseException], None] = {}


def refusing(answer: Callable[..., Any], library: ctypes.CDLL) -> Callable[..., Any]:
    """Return ``answer`` made to note what it raises in ``library`` and to return a tensor in its place.

    The compiled kernel then has torch raise a class of which one tries to make an instance and gets the very
    exception that was meant.
    """

    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return answer(*args, **kwargs)
        except BaseException as error:
            library.accelera_refuse(ctypes.py_object(_stand_in(error)))
            return kwargs.get("out", torch.empty(0))

    return answered


def _stand_in(error: BaseException) -> type[BaseException]:
    """Return a class that gives ``error`` when called; it is kept until then, unless many others follow."""

    def give(cls: type[BaseException], *_: object) -> BaseException:
        _on_their_way.pop(cls, None)
        return error

    kind = type(error)
    stand_in = type(kind.__name__, (kind,), {"__new__": give})
    _on_their_way[stand_in] = None
    for oldest in list(_on_their_way)[:-_MOST_ON_THEIR_WAY]:
        _on_their_way.pop(oldest, None)
    return stand_in
