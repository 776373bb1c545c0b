"""The ways to intercept, fastest first, and which of them is used here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from accelera.errors import BackendMissingError
from accelera.interceptor.mechanism import python_tier, shim, stable
from accelera.interceptor.mechanism.compiled import operators_in
from accelera.interceptor.mechanism.contract import Tier
from accelera.settings import current_value


class Way(NamedTuple):
    """A way to intercept, whether it works here or not."""

    name: str
    """What people call it."""
    fault: Callable[[], str | None]
    """Why it does not work here; None when it does."""
    make: Callable[[], Tier]
    """Make it ready."""
    means: str
    """What it is, for people."""
    compiled: Callable[[], frozenset[str]]
    """The operators whose small calls it answers in C++."""


WAYS = (
    Way(
        "shim",
        shim.fault,
        shim.make,
        "compiled kernels, built for exactly this torch",
        lambda: operators_in(shim.shim_path()),
    ),
    Way(
        "stable",
        stable.fault,
        stable.StableTier,
        "compiled kernels over torch's C functions where it has some",
        stable.operators,
    ),
    Way("python", python_tier.fault, python_tier.PythonTier, "kernels in Python", frozenset),
)
"""Fastest first."""


def chosen() -> Tier:
    """Return the way that is used, made ready.

    Raises
    ------
    BackendMissingError
        None works, or not the one that ACCELERA_INTERCEPTION asks for.
    """
    wanted = current_value("interception")
    way = _first(wanted)
    if way is None:
        raise BackendMissingError(
            f"[interception] ACCELERA_INTERCEPTION={wanted} and no such way works here: {_faults(wanted)}"
        )
    return _made(way)


def tier() -> str:
    """Return how calls are caught: ``"shim"``, ``"stable"`` or ``"python"``; ``"none"`` if not at all."""
    way = _first(current_value("interception"))
    return "none" if way is None else way.name


def why() -> str:
    """Return why calls are caught that way, for people: what it is, and why no faster one works."""
    wanted = current_value("interception")
    way = _first(wanted)
    if way is None:
        return _faults(wanted)
    if wanted != "auto":
        return f"{way.means}; ACCELERA_INTERCEPTION={wanted} asks for it"
    passed = WAYS[: WAYS.index(way)]
    return "; ".join([way.means, *(str(_fault(each)) for each in passed)])


def compiled_operators() -> frozenset[str]:
    """Return the operators whose small calls the way that is used answers in C++; Python answers others."""
    way = _first(current_value("interception"))
    return frozenset() if way is None else way.compiled()


def build_shim(compiler: str | None = None) -> Path:
    """Build the fastest way for the torch that is installed, as ``accelera build-shim`` does.

    Returns the library. Raises BackendMissingError when there is no compiler, or the shim does not compile
    against this torch.
    """
    built = shim.build(compiler)
    look_again()
    return built


def look_again() -> None:
    """Forget what worked: the ways are tried anew when next asked for."""
    _fault.cache_clear()
    _made.cache_clear()


def _first(wanted: str) -> Way | None:
    return next((way for way in _asked(wanted) if _fault(way) is None), None)


def _asked(wanted: str) -> list[Way]:
    return [way for way in WAYS if wanted in ("auto", way.name)]


def _faults(wanted: str) -> str:
    return "; ".join(str(_fault(way)) for way in _asked(wanted))


@cache
def _fault(way: Way) -> str | None:
    return way.fault()


@cache
def _made(way: Way) -> Tier:
    return way.make()
