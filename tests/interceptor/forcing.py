"""Interception that takes a given route whatever the size of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from accelera.interceptor import stats
from accelera.interceptor._internal import Stats
from accelera.interceptor.api import within
from accelera.interceptor.config import Route, RouteOverride, config_of

SMALL_TILE_BYTES = 256


def forced(route: Route, tile_bytes: int = SMALL_TILE_BYTES) -> AbstractContextManager[None]:
    """Look at everything and let it go by ``route``, in tiles so small that there are many."""
    return within(config_of("256MiB", 0, 0, override=RouteOverride(route, tile_bytes)))


@contextmanager
def counted() -> Iterator[list[Stats]]:
    """Count anew inside the block; the list holds the counts after it."""
    stats(reset=True)
    seen: list[Stats] = []
    yield seen
    seen.append(stats())
