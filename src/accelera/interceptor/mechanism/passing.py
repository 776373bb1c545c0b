"""What a thread lets pass: nothing, composite operators only, or everything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING, COMPOSITES, EVERYTHING = 0, 1, 2

_thread = threading.local()
_followers: list[Callable[[int], object]] = []


def level() -> int:
    """Return what the calling thread lets pass: NOTHING, COMPOSITES or EVERYTHING."""
    found: int = getattr(_thread, "level", NOTHING)
    return found


def follow(setter: Callable[[int], object]) -> None:
    """Have ``setter`` told of every later change, in the thread that changes, and of the present level."""
    if setter not in _followers:
        _followers.append(setter)
        setter(level())


def raise_to(wanted: int) -> int:
    """Let this thread pass at least what ``wanted`` says; return the level before, for ``put_back``."""
    before = level()
    if wanted > before:
        put_back(wanted)
    return before


def put_back(value: int) -> None:
    """Let this thread pass what ``value`` says."""
    if level() != value:
        _thread.level = value
        for setter in _followers:
            setter(value)


@contextmanager
def passing() -> Iterator[None]:
    """Switch interception off in this thread, until the end of the block.

    Nests. Other threads, those started inside too, go on as they were.
    """
    before = raise_to(EVERYTHING)
    try:
        yield
    finally:
        put_back(before)
