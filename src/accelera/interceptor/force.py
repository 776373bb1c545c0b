"""Which limits are in force, for all threads: the latest that were not ended."""

from __future__ import annotations

from accelera.interceptor.limits import Limits

_latest: list[Limits | None] = [None]


def in_force() -> Limits | None:
    """Return the limits in force; None while nothing is intercepted."""
    return _latest[0]


def put_in_force(limits: Limits | None) -> None:
    """Route calls by ``limits`` from now on."""
    _latest[0] = limits
