"""Interception switched on and off for all threads, by the fastest backend that works here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from accelera.errors import BackendMissingError, SettingError
from accelera.interceptor.hooks import python, shim, stable
from accelera.interceptor.hooks.dispatch import Armed, Handler, set_armed
from accelera.interceptor.hooks.operators import check_name
from accelera.interceptor.hooks.shim import operators_in
from accelera.settings import current_value


class Backend(Protocol):
    """Way to put kernels before torch's."""

    name: str
    """Its name in settings and reports."""

    def set_thresholds(self, least_bytes: int, least_size: int) -> None:
        """Hand over calls of at least ``least_bytes`` bytes with a dimension of at least ``least_size``."""

    def register(self, names: Sequence[str]) -> None:
        """Put kernels before torch's for operators that have none of ours yet."""

    def unregister(self) -> None:
        """Put torch's kernels back."""


class BackendOption(NamedTuple):
    """Backend of interception, whether it works here or not."""

    name: str
    """Its name in settings and reports."""
    fault: Callable[[], str | None]
    """Why it does not work here; None when it does."""
    make: Callable[[], Backend]
    """Make it ready."""
    means: str
    """Description for people."""
    compiled: Callable[[], frozenset[str]]
    """The operators whose small calls it answers in C++."""


BACKENDS = (
    BackendOption(
        "shim",
        shim.fault,
        shim.make,
        "compiled kernels, built for exactly this torch",
        lambda: operators_in(shim.shim_path()),
    ),
    BackendOption(
        "stable",
        stable.fault,
        stable.StableBackend,
        "compiled kernels over torch's C functions where it has some",
        stable.operators,
    ),
    BackendOption("python", python.fault, python.PythonBackend, "kernels in Python", frozenset),
)
"""Fastest first."""


def chosen() -> Backend:
    """Return the backend that is used, made ready.

    Raises
    ------
    BackendMissingError
        None works, or not the one that ACCELERA_INTERCEPTION asks for.
    """
    wanted = current_value("interception")
    option = _first(wanted)
    if option is None:
        raise BackendMissingError(
            f"[interception] ACCELERA_INTERCEPTION={wanted} and no such way works here: {_faults(wanted)}"
        )
    return _made(option)


def tier() -> str:
    """Return how calls are caught: ``"shim"``, ``"stable"`` or ``"python"``; ``"none"`` if not at all."""
    option = _first(current_value("interception"))
    return "none" if option is None else option.name


def why() -> str:
    """Return why calls are caught that way, for people: what it is, and why no faster one works."""
    wanted = current_value("interception")
    option = _first(wanted)
    if option is None:
        return _faults(wanted)
    if wanted != "auto":
        return f"{option.means}; ACCELERA_INTERCEPTION={wanted} asks for it"
    passed = BACKENDS[: BACKENDS.index(option)]
    return "; ".join([option.means, *(str(_fault(each)) for each in passed)])


def compiled_operators() -> frozenset[str]:
    """Return the operators whose small calls the backend in use answers in C++; Python answers others."""
    option = _first(current_value("interception"))
    return frozenset() if option is None else option.compiled()


def build_shim(compiler: str | None = None) -> Path:
    """Build the fastest backend for the torch that is installed, as ``accelera build-shim`` does.

    Returns the library. Raises BackendMissingError when there is no compiler, or the shim does not compile
    against this torch.
    """
    built = shim.build(compiler)
    look_again()
    return built


def look_again() -> None:
    """Forget what worked: backends are tried again when next asked for."""
    _fault.cache_clear()
    _made.cache_clear()


def _first(wanted: str) -> BackendOption | None:
    return next((option for option in _asked(wanted) if _fault(option) is None), None)


def _asked(wanted: str) -> list[BackendOption]:
    return [option for option in BACKENDS if wanted in ("auto", option.name)]


def _faults(wanted: str) -> str:
    return "; ".join(str(_fault(option)) for option in _asked(wanted))


@cache
def _fault(option: BackendOption) -> str | None:
    return option.fault()


@cache
def _made(option: BackendOption) -> Backend:
    return option.make()


_lock = threading.Lock()
_armed_with: list[Backend] = []
_registered: set[str] = set()


def arm(handlers: Mapping[str, Handler], least_bytes: int, least_size: int) -> None:
    """Hand large calls of the named operators to their handlers, in every thread, until ``disarm``.

    A second ``arm`` replaces handlers and thresholds. A handler gets the arguments of the operator as its
    schema has them, ``out`` and the like by name, and returns what the operator returns. It runs below
    autograd with interception off in its thread; handlers of composite operators (``matmul``,
    ``scaled_dot_product_attention``) run above autograd, with only composite operators passing.

    Parameters
    ----------
    handlers
        By the operator's name without ``aten::``, such as ``"mm"``, ``"mm.out"``, ``"add_.Tensor"``.
    least_bytes
        Bytes of operands and result together from which a call is handed over.
    least_size
        Longest dimension of an operand, in elements, from which it is.

    Raises
    ------
    UnknownNameError
        An operator cannot be intercepted.
    SettingError
        A threshold is negative.
    BackendMissingError
        No way to intercept works with this torch, or not the one that ACCELERA_INTERCEPTION asks for.
    """
    for name, least in (("least_bytes", least_bytes), ("least_size", least_size)):
        if least < 0:
            raise SettingError(f"[interception] {name}={least} is negative; give 0 or more")
    names = [check_name(name) for name in handlers]
    with _lock:
        backend = _armed_with[0] if _armed_with else chosen()
        set_armed(Armed(dict(handlers), least_bytes, least_size))
        backend.set_thresholds(least_bytes, least_size)
        _register(backend, [name for name in names if name not in _registered])


def disarm() -> None:
    """Leave torch as it was before ``arm``; without an ``arm``, do nothing."""
    with _lock:
        _unregister()


def _register(backend: Backend, names: list[str]) -> None:
    _armed_with[:] = [backend]
    _registered.update(names)
    try:
        backend.register(names)
    except BaseException:
        _unregister()
        raise


def _unregister() -> None:
    while _armed_with:
        _armed_with.pop().unregister()
    _registered.clear()
    set_armed(Armed({}, 0, 0))
