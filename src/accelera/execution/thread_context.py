"""Context of a thread: what it has set for itself, and has to be set where its tasks run as well."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable
from typing import Any, TypeVar, final

Returned = TypeVar("Returned")

_USUAL = 0
"""The number of a device's default stream, which is current in new threads."""


@final
class ThreadContext:
    """The context variables of the thread that makes it, torch's modes, and its accelerator and stream.

    Modes are gradients, inference and autocast. NumPy's ``errstate`` and a ``decimal`` context are context
    variables. To be used by one thread.
    """

    __slots__ = ("_context", "_modes")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        torch = sys.modules.get("torch")
        self._modes = [*_modes_of(torch), *_streams_of(torch)]

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


def _streams_of(torch: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return how to make the accelerator and streams current that are not those of a new thread.

    None while no accelerator is in use, which asking would begin.
    """
    try:
        kind = next(kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_initialized())
    except (AttributeError, StopIteration):
        return []
    from accelera.devices.torch_streams import on_stream

    module = getattr(torch, kind)
    devices = [torch.device(kind, index) for index in range(module.device_count())]
    streams = [(torch.accelerator.current_stream(device), device) for device in devices]
    here = streams.pop(module.current_device())
    unusual = [each for each in streams if each[0].stream_id != _USUAL]
    if unusual or here[0].stream_id != _USUAL or here[1].index != 0:
        unusual.append(here)
    return [(on_stream, each) for each in unusual]
