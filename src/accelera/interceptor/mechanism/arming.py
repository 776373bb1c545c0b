"""Interception switched on and off, for all threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from accelera.errors import SettingError
from accelera.interceptor.mechanism import tiers
from accelera.interceptor.mechanism.contract import Tier
from accelera.interceptor.mechanism.handling import Armed, Handler, put_in_force
from accelera.interceptor.mechanism.operators import check_name

_lock = threading.Lock()
_armed_with: list[Tier] = []
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
        tier = _armed_with[0] if _armed_with else tiers.chosen()
        put_in_force(Armed(dict(handlers), least_bytes, least_size))
        tier.set_thresholds(least_bytes, least_size)
        _register(tier, [name for name in names if name not in _registered])


def disarm() -> None:
    """Leave torch as it was before ``arm``; without an ``arm``, do nothing."""
    with _lock:
        _unregister()


def _register(tier: Tier, names: list[str]) -> None:
    _armed_with[:] = [tier]
    _registered.update(names)
    try:
        tier.register(names)
    except BaseException:
        _unregister()
        raise


def _unregister() -> None:
    while _armed_with:
        _armed_with.pop().unregister()
    _registered.clear()
    put_in_force(Armed({}, 0, 0))
