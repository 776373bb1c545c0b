"""The memory limits that control groups (containers, systemd slices, batch queues) put on us.

Both hierarchies are read: version 1 (``memory.limit_in_bytes``) and version 2 (``memory.max``). A limit
on any ancestor counts, so every level from our own group up to the mount point is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class CgroupFiles:
    """Where one level of the hierarchy states its limit and its use."""

    limit: str
    usage: str
    stat: str
    inactive_key: bytes
    """The line of ``stat`` that counts page cache which the kernel drops before it kills."""


@dataclass(frozen=True)
class CgroupMemory:
    """One limit, in bytes, and what is left of it."""

    limit_bytes: int
    available_bytes: int


def cgroup_memory(below_bytes: int, proc: str = "/proc") -> Iterator[CgroupMemory]:
    """Yield every limit smaller than ``below_bytes`` that applies to this process."""
    for level in cgroup_levels(proc):
        limit_bytes = _read_int(level.limit)
        if limit_bytes is not None and limit_bytes < below_bytes:
            used_bytes = (_read_int(level.usage) or 0) - _inactive_bytes(level)
            yield CgroupMemory(limit_bytes, max(0, limit_bytes - max(0, used_bytes)))


@cache
def cgroup_levels(proc: str = "/proc") -> tuple[CgroupFiles, ...]:
    """Return the levels of the memory hierarchy from our own group upwards; found once."""
    try:
        mounts = Path(proc, "self/mountinfo").read_text().splitlines()
        groups = Path(proc, "self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    return tuple(level for line in mounts for level in _levels_of_mount(line, groups))


def _levels_of_mount(line: str, groups: list[str]) -> Iterator[CgroupFiles]:
    before, _, after = line.partition(" - ")
    kind, _, options = [*after.split(" "), "", "", ""][:3]
    if kind == "cgroup" and "memory" in options.split(","):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        key, controller = b"total_inactive_file", "memory"
    elif kind == "cgroup2":
        names = ("memory.max", "memory.current")
        key, controller = b"inactive_file", ""
    else:
        return
    root, mount = before.split(" ")[3:5]
    for folder in _ancestors(Path(mount), root, _group_path(groups, controller)):
        limit, usage, stat = (str(folder / name) for name in (*names, "memory.stat"))
        if os.path.exists(limit):
            yield CgroupFiles(limit, usage, stat, key)


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


def _inactive_bytes(level: CgroupFiles) -> int:
    for line in _read(level.stat).splitlines():
        name, _, value = line.partition(b" ")
        if name == level.inactive_key:
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
