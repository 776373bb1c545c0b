"""What a call must not raise when a coroutine waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Returned = TypeVar("Returned")


def without_stop_iteration(call: Callable[[], Returned]) -> Returned:
    """Return what ``call`` does; StopIteration, which nobody could wait for, becomes a RuntimeError."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(
            "[aexecute] a task raised StopIteration, which a coroutine cannot raise: raise another exception"
        ) from error
