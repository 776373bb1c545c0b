"""What a thread has set for itself, and has to be set where its tasks run as well."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable
from typing import Any, TypeVar, final

Returned = TypeVar("Returned")


@final
class ThreadContext:
    """The context variables of the thread that makes it, and torch's modes: gradients, inference, autocast.

    NumPy's ``errstate`` and a ``decimal`` context are context variables. To be used by one thread.
    """

    __slots__ = ("_context", "_modes")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._modes = _modes_of(sys.modules.get("torch"))

    def run(self, do: Callable[[], Returned]) -> Returned:
        """Return what ``do`` does, called as the thread would that made this."""
        return self._context.run(self._run, do)

    def _run(self, do: Callable[[], Returned]) -> Returned:
        with contextlib.ExitStack() as modes:
            for make, arguments in self._modes:
                modes.enter_context(make(*arguments))
            return do()


def modes_are_set() -> bool:
    """Return whether this thread has set modes of torch, which a process of its own would not have."""
    return bool(_modes_of(sys.modules.get("torch")))


def _modes_of(torch: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return how to make the modes that are not as they are in a new thread; none while torch is loading."""
    try:
        if torch is None:
            return []
        modes: list[tuple[Any, tuple[Any, ...]]] = [
            (torch.autocast, (kind, torch.get_autocast_dtype(kind)))
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ]
        if torch.is_inference_mode_enabled():
            modes.append((torch.inference_mode, ()))
        elif not torch.is_grad_enabled():
            modes.append((torch.no_grad, ()))
    except AttributeError:
        return []
    return modes
