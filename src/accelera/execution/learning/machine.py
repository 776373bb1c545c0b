"""For which machine and libraries a measurement holds."""

from __future__ import annotations

import functools
import platform
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
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
