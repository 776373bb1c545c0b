"""Streams of a torch device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def on_stream(stream: Any, device: torch.device) -> Iterator[None]:
    """Make ``stream`` this thread's current one for a while; the current device stays what it is."""
    before = torch.accelerator.current_stream(device)
    module = torch.get_device_module(device)
    index = module.current_device()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        module.set_device(index)
