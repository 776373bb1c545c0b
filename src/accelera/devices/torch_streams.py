"""Streams of a torch device: which one is current, and what waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_WITHOUT_STREAMS = ("cpu", "mps", "meta")


@contextlib.contextmanager
def on_stream(stream: Any, device: torch.device) -> Iterator[None]:
    """Make ``stream`` this thread's current one for a while; the current device stays what it is.

    Coming back to another device makes no context there, which would take half a gigabyte of its memory.
    """
    with torch.get_device_module(device).device(device):
        before = torch.accelerator.current_stream(device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)


def wait_for_current_work(name: str) -> None:
    """Wait, on the host, for what this thread has given its current stream of the device of that name.

    Threads have current streams of their own: what others do from now on comes after it. Nothing is to be
    waited for where torch knows no such device, or no streams of it.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        return
    if device.type not in _WITHOUT_STREAMS:
        torch.accelerator.current_stream(device).synchronize()


def new_stream(device: torch.device, priority: int = 0) -> Any:
    """Return a new stream of ``device``, more urgent the lower its priority; None where it has none."""
    if device.type in _WITHOUT_STREAMS:
        return None
    try:
        return torch.Stream(device, priority=priority)
    except (RuntimeError, NotImplementedError):
        return None
