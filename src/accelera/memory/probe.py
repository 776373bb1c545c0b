"""Probes of the machine: its memory, what of it is free, what this process holds, and the limits on it.

Read from ``/proc`` and the control groups on Linux (tens of microseconds), through psutil elsewhere.

Control groups (containers, systemd slices, batch queues) limit memory and processors. Both hierarchies are
read, version 1 (``memory.limit_in_bytes``, ``cpu.cfs_quota_us``) and version 2 (``memory.max``, ``cpu.max``),
at the mount points that the kernel names. A limit on any ancestor counts, so every level from our own group
up to the mount point is looked at.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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


def trim_heap() -> None:
    """Return the free pages of the C library's heaps to the system; takes milliseconds.

    Nothing happens where the library has no such call.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(ctypes.c_size_t(0))


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


@dataclass(frozen=True)
class CgroupLevel:
    """One level of a hierarchy that has a controller."""

    folder: str
    version: int
    """1 or 2."""


@dataclass(frozen=True)
class CgroupMemory:
    """One limit, in bytes, and what is left of it."""

    limit_bytes: int
    available_bytes: int


_LIMITS = {
    ("memory", 1): "memory.limit_in_bytes",
    ("memory", 2): "memory.max",
    ("cpu", 1): "cpu.cfs_quota_us",
    ("cpu", 2): "cpu.max",
}
"""By controller and version the file that a level has where it can limit."""
_USAGE = {
    1: ("memory.usage_in_bytes", b"total_inactive_file"),
    2: ("memory.current", b"inactive_file"),
}
"""By version the file of the use, and the line of ``memory.stat`` that counts the page cache which the kernel
drops before it kills."""


def cgroup_memory(below_bytes: int, proc: str = "/proc") -> Iterator[CgroupMemory]:
    """Yield every limit smaller than ``below_bytes`` that applies to this process."""
    for level in cgroup_levels("memory", proc):
        limit_bytes = _read_int(f"{level.folder}/{_LIMITS['memory', level.version]}")
        if limit_bytes is not None and limit_bytes < below_bytes:
            usage, inactive = _USAGE[level.version]
            used_bytes = (_read_int(f"{level.folder}/{usage}") or 0) - _inactive_bytes(level.folder, inactive)
            yield CgroupMemory(limit_bytes, max(0, limit_bytes - max(0, used_bytes)))


def cgroup_processors(proc: str = "/proc") -> Iterator[float]:
    """Yield how many processors' time each level grants that limits it."""
    for level in cgroup_levels("cpu", proc):
        if level.version == 2:
            found = _read(f"{level.folder}/cpu.max").split()
        else:
            found = [_read(f"{level.folder}/cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
        if len(found) == 2 and found[0].isdigit() and found[1].isdigit() and int(found[1]) > 0:
            yield int(found[0]) / int(found[1])


@cache
def cgroup_levels(controller: str, proc: str = "/proc") -> tuple[CgroupLevel, ...]:
    """Return the levels that limit ``controller`` from our own group upwards; found once."""
    try:
        mounts = Path(proc, "self/mountinfo").read_text().splitlines()
        groups = Path(proc, "self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    return tuple(level for line in mounts for level in _levels_of_mount(line, groups, controller))


def _levels_of_mount(line: str, groups: list[str], controller: str) -> Iterator[CgroupLevel]:
    before, _, after = line.partition(" - ")
    kind, _, options = [*after.split(" "), "", "", ""][:3]
    if kind == "cgroup" and controller in options.split(","):
        version, group = 1, _group_path(groups, controller)
    elif kind == "cgroup2":
        version, group = 2, _group_path(groups, "")
    else:
        return
    root, mount = before.split(" ")[3:5]
    for folder in _ancestors(Path(mount), root, group):
        if (folder / _LIMITS[controller, version]).exists():
            yield CgroupLevel(str(folder), version)


def _group_path(groups: list[str], controller: str) -> str:
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _ancestors(mount: Path, root: str, group: str) -> Iterator[Path]:
    inside = os.path.relpath(group, root) if group.startswith(root) else "."
    folder = mount / inside
    if not folder.is_dir():
        folder = mount
    while True:
        yield folder
        if folder == mount:
            return
        folder = folder.parent


def _read_int(path: str) -> int | None:
    """Return the number in ``path``; None where it is absent or says ``max``."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _inactive_bytes(folder: str, key: bytes) -> int:
    for line in _read(f"{folder}/memory.stat").splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return 0


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(handle, 1 << 16)
    finally:
        os.close(handle)
