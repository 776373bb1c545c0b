"""For which machine and libraries a measurement holds."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from typing import Any

from accelera.execution.capabilities import HardwareCapabilities
from accelera.execution.probing.processor import model_name

_LIBRARIES = ("accelera", "numpy", "scipy", "torch")


@functools.cache
def fingerprint() -> dict[str, Any]:
    """Return processor, cores, accelerators and versions; another of them, and nothing measured holds."""
    hardware = HardwareCapabilities.detect()
    return {
        "processor": model_name(),
        "cores": hardware.cpu_cores,
        "simd": list(hardware.cpu_simd_support),
        "accelerators": [list(each) for each in hardware.accelerators],
        "python": platform.python_version(),
        "libraries": _versions(),
    }


def _versions() -> dict[str, str | None]:
    """Return the versions that are installed, from the names of their folders.

    Loading ``importlib.metadata`` takes longer than many a batch, and loading the libraries much longer.
    """
    found: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                name, _, version = entry.name.removesuffix(".dist-info").partition("-")
                if version and entry.name.endswith(".dist-info") and found.get(name, "") is None:
                    found[name] = version
    return found
