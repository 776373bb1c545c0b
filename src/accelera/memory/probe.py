"""Probes of memory: how much the machine has, how much is free, and how much this process holds.

Read from ``/proc`` and the control groups on Linux (tens of microseconds), through psutil elsewhere.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from accelera.memory.cgroup import cgroup_memory


@dataclass(frozen=True)
class HostMemory:
    """The machine's RAM as this process may use it."""

    total_bytes: int
    """RAM that is built in."""
    available_bytes: int
    """What can be allocated now without swapping and without meeting a control group's limit."""
    limit_bytes: int
    """The most this process may ever use: the smallest control-group limit, else ``total_bytes``."""


@dataclass(frozen=True)
class ProcessMemory:
    """Pages of this process that lie in RAM, by kind. Linux counts them in batches of some 100 KiB."""

    anon_bytes: int
    """Private memory: heap, stacks, anonymous maps."""
    file_bytes: int
    """Mapped files: libraries and memory-mapped operands."""
    shmem_bytes: int
    """Shared memory and anonymous shared maps."""
    rss_bytes: int
    """The three together."""
    peak_bytes: int
    """Largest ``rss_bytes`` since the start or the last ``reset_peak``."""


def host_memory() -> HostMemory:
    """Return what RAM there is, honouring control-group limits of either version."""
    if not sys.platform.startswith("linux"):
        return _host_memory_psutil()
    info = _fields("/proc/meminfo")
    total_bytes = limit_bytes = info[b"MemTotal"]
    available_bytes = info[b"MemAvailable"]
    for group in cgroup_memory(below_bytes=total_bytes):
        limit_bytes = min(limit_bytes, group.limit_bytes)
        available_bytes = min(available_bytes, group.available_bytes)
    return HostMemory(total_bytes, available_bytes, limit_bytes)


def process_memory() -> ProcessMemory:
    """Return what this process holds in RAM and the most it has held."""
    if not sys.platform.startswith("linux"):
        return _process_memory_psutil()
    status = _fields("/proc/self/status")
    return ProcessMemory(
        anon_bytes=status[b"RssAnon"],
        file_bytes=status[b"RssFile"],
        shmem_bytes=status[b"RssShmem"],
        rss_bytes=status[b"VmRSS"],
        peak_bytes=status[b"VmHWM"],
    )


def reset_peak() -> bool:
    """Start ``peak_bytes`` again from the present; return False where the system cannot."""
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as handle:
            handle.write(b"5")
    except OSError:
        return False
    return True


def _fields(path: str) -> dict[bytes, int]:
    """Return the lines of a ``Name:  123 kB`` file as bytes by name."""
    handle = os.open(path, os.O_RDONLY)
    try:
        text = os.read(handle, 1 << 16)
    finally:
        os.close(handle)
    parts = (line.split() for line in text.splitlines() if line.endswith(b"kB"))
    return {name[:-1]: int(value) * 1024 for name, value, _ in parts}


def _host_memory_psutil() -> HostMemory:
    import psutil

    memory = psutil.virtual_memory()
    return HostMemory(memory.total, memory.available, memory.total)


def _process_memory_psutil() -> ProcessMemory:
    import psutil

    info = psutil.Process().memory_info()
    return ProcessMemory(info.rss, 0, 0, info.rss, int(getattr(info, "peak_wset", info.rss)))
