"""Under which name a function's measurements are found again: its own and that of its code."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

from accelera.execution.kernel import Kernel, name_of
from accelera.execution.profile import WorkloadProfile

_KEPT: Final = 1024
_NO_PROFILE: Final = " 0/0.5"
_KNOWN: dict[tuple[int, str], tuple[CodeType, str, str]] = {}
"""Identity and key without a profile, by the address of the code, which is kept with them, and the name."""


def key_of(function: Callable[..., Any], profile: WorkloadProfile | None) -> str:
    """Return under which name measurements of such tasks are kept: other code or size, other measurements."""
    if profile is None:
        return _known(function)[1]
    size_bits, complexity = _size_of(profile)
    return f"{identity_of(function)} {size_bits}/{complexity}"


def identity_of(function: Callable[..., Any]) -> str:
    """Return module, qualified name and a hash of the code.

    What a function closes over, and arguments that ``functools.partial`` holds, are not looked at.
    """
    return _known(function)[0]


def _known(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the identity, and the key of tasks of which nothing else is known."""
    inner = function if type(function) is FunctionType else _inner(function)
    code = getattr(inner, "__code__", None)
    if not isinstance(code, CodeType):
        name = name_of(inner)
        return name, name + _NO_PROFILE
    short = (id(code), inner.__qualname__)
    known = _KNOWN.get(short)
    if known is None:
        if len(_KNOWN) >= _KEPT:
            _KNOWN.clear()
        identity = f"{name_of(inner)}#{_hash_of(code)}"
        known = _KNOWN[short] = (code, identity, identity + _NO_PROFILE)
    return known[1:]


def _size_of(profile: WorkloadProfile) -> tuple[int, float]:
    """Return the class of tasks: bytes to the power of two, complexity to the quarter."""
    return profile.memory_per_task.bit_length(), round(4 * profile.complexity) / 4


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    while True:
        if isinstance(function, Kernel):
            function = function.function
        elif isinstance(function, functools.partial):
            function = function.func
        else:
            return getattr(function, "__func__", function)


def _hash_of(code: CodeType) -> str:
    digest = hashlib.blake2b(digest_size=6)
    _feed(digest.update, code)
    return digest.hexdigest()


def _feed(update: Callable[[bytes], None], code: CodeType) -> None:
    update(code.co_code)
    update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(update, constant)
        elif isinstance(constant, frozenset):
            update(repr(sorted(map(repr, constant))).encode())
        else:
            update(repr(constant).encode())
