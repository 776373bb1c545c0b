"""The processor: its vector instructions and physical cores, without asking a library that takes a second."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

SIMD = (
    "sse2",
    "sse4_1",
    "sse4_2",
    "avx",
    "fma",
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_tile",
    "neon",
    "sve",
    "sve2",
)
"""Vector instructions that are told, as Linux calls them; ``neon`` for ARM's Advanced SIMD."""
_FIRST_BYTES = 1 << 14
"""The first processor of ``/proc/cpuinfo`` lies within; the others say the same."""
_IMPLIED = {"x86_64": ("sse2",), "amd64": ("sse2",), "arm64": ("neon",), "aarch64": ("neon",)}
"""What every processor of an architecture has."""


def simd_support(proc: str = "/proc") -> tuple[str, ...]:
    """Return the vector instructions of the processor, weakest first."""
    flags = set(_flags(Path(proc, "cpuinfo"))) | set(_IMPLIED.get(platform.machine().lower(), ()))
    return tuple(name for name in SIMD if name in flags)


def model_name(proc: str = "/proc") -> str:
    """Return what the processor is called."""
    found = re.search(rb"^model name\s*:\s*(.+)$", _beginning(Path(proc, "cpuinfo")), re.MULTILINE)
    return found[1].decode(errors="replace").strip() if found else platform.processor() or platform.machine()


def physical_cores(system: str = "/sys/devices/system/cpu") -> int:
    """Return the cores under the processors this process may run on; threads of a core count once."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return _physical_cores_psutil()
    folders = (Path(system, f"cpu{index}", "topology") for index in usable)
    siblings = {_beginning(folder / "thread_siblings_list").strip() for folder in folders}
    return len(siblings - {b""}) or _physical_cores_psutil()


def _physical_cores_psutil() -> int:
    import psutil

    try:
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    except OSError:
        return os.cpu_count() or 1


def _flags(cpuinfo: Path) -> list[str]:
    if sys.platform == "darwin":
        return _flags_of_macos()
    found = re.search(rb"^(?:flags|Features)\s*:\s*(.+)$", _beginning(cpuinfo), re.MULTILINE)
    return found[1].decode().replace("asimd", "neon").split() if found else []


def _flags_of_macos() -> list[str]:
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    asked = subprocess.run(["sysctl", "-n", *names], capture_output=True, text=True, check=False)
    return asked.stdout.lower().replace("avx1.0", "avx").replace("sse4.", "sse4_").split()


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(_FIRST_BYTES) or b""
    except OSError:
        return b""
