"""Which files this process has open."""

from __future__ import annotations

import os
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Return the files below ``folder``, nameless ones among them, that descriptors of this process name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own, or another thread's that is closed by now
            continue
    return [name for name in found if name.startswith(str(folder))]
