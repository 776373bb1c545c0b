"""Limits of memory and processors that control groups (containers, systemd slices, batch queues) put on us.

Both hierarchies are read, version 1 (``memory.limit_in_bytes``, ``cpu.cfs_quota_us``) and version 2
(``memory.max``, ``cpu.max``), at the mount points that the kernel names. A limit on any ancestor counts, so
every level from our own group up to the mount point is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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
