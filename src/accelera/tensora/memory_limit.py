"""Limits on the bytes of tensors: of the user, of a budgeted step, and of ``accelera.budget``."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Literal

from accelera.memory._internal import LEDGER
from accelera.tensora.core import native

Source = Literal["user", "step", "process"]
"""Who sets a limit: ``set_memory_limit``, a budgeted step, or ``accelera.budget``."""

_limits: dict[str, dict[Source, int]] = defaultdict(dict)
_lock = threading.RLock()


def set_limit(source: Source, limit_bytes: int | None, device: str) -> None:
    """Set or lift one limit of a device; the smallest of all is in force.

    Raises
    ------
    ValueError
        If tensors hold more already.

    """
    with _lock:
        wanted = {name: size for name, size in _limits[device].items() if name != source}
        if limit_bytes is not None:
            wanted[source] = limit_bytes
        # The extension takes 0 for no limit.
        native.set_memory_limit(min(wanted.values(), default=0), device)
        _limits[device] = wanted


def process_limit(device: str) -> int | None:
    """Return what ``accelera.budget`` leaves for tensors on a device; None without one."""
    return _limits[device].get("process")


class _HostTensors:
    """Tensors in RAM, as a component of the process's account of memory."""

    def used_bytes(self) -> int:
        return int(native.memory_stats("cpu").live_bytes)

    def restrict(self, limit_bytes: int | None) -> None:
        held = self.used_bytes()
        set_limit("process", None if limit_bytes is None else max(limit_bytes, held), "cpu")


LEDGER.measure("tensora", _HostTensors())
