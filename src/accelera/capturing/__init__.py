"""What a PyTorch program does with memory, for real or by shapes alone: every access of every tensor."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from accelera.capturing.capturing import capture
from accelera.capturing.live import live_bytes, peak_live_bytes

if TYPE_CHECKING:
    from accelera.capturing.recording import Recording as Recording

_LOADING_TORCH = {"Recording": "recording"}

__all__ = ["Recording", "capture", "live_bytes", "peak_live_bytes"]


def __getattr__(name: str) -> Any:
    if name not in _LOADING_TORCH:
        raise AttributeError(f"module 'accelera.capturing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"accelera.capturing.{_LOADING_TORCH[name]}"), name)
