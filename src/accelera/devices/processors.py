"""How many processors this process may use: its affinity and the control groups' CPU quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_processors(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return the number of threads worth running, at least one."""
    return max(1, min([_affinity(), *_quotas(Path(proc), Path(groups))]))


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _quotas(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the whole processors that each level of either hierarchy grants."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers or "cpu" in names:
            yield from _quotas_above(groups / controllers, path)
            if controllers:
                yield from _quotas_above(groups / "cpu", path)


def _quotas_above(mount: Path, path: str) -> Iterator[int]:
    folder = mount / path.lstrip("/")
    for level in [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]:
        two = _read(level / "cpu.max").split()
        one = [_read(level / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
        for quota, period in (pair for pair in (two, one) if len(pair) == 2):
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                yield math.ceil(int(quota) / int(period))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
