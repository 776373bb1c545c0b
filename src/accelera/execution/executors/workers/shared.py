"""Memory that a worker and its driver both see: where the worker is, whether to stop, room for buffers."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final, final

ROOM_BYTES: Final = 4 << 20
"""Room for buffers each way; it takes no memory before it is used."""
STARTING, IDLE, FUNCTION, TASKS = -4, -3, -2, -1
"""Where a worker is while at no task: coming up, waiting, loading the function, loading the tasks."""
AT, STOP = 0, 1
_HEAD_BYTES: Final = mmap.PAGESIZE


def create() -> int:
    """Return a file descriptor of such memory, which has no name and ends with its last user."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("accelera-worker")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _HEAD_BYTES + 2 * ROOM_BYTES)
    return descriptor


@final
class Shared:
    """The memory behind ``descriptor``, which it takes over."""

    def __init__(self, descriptor: int) -> None:
        view = memoryview(mmap.mmap(descriptor, _HEAD_BYTES + 2 * ROOM_BYTES))
        os.close(descriptor)
        self.cell = view[:16].cast("q")
        """``cell[AT]``: position of the task that the worker is at, or a state; ``cell[STOP]``: 1 to stop."""
        self.to_worker = view[_HEAD_BYTES : _HEAD_BYTES + ROOM_BYTES]
        self.from_worker = view[_HEAD_BYTES + ROOM_BYTES :]
