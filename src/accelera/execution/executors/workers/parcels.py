"""Objects made into bytes for another process and back: cloudpickle, large arrays beside it uncopied."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

from accelera.execution.executors.workers.wire import LARGE_BYTES, Part


def pack(value: Any) -> list[Part]:
    """Return ``value`` as parts of a message; raises whatever its pickling raises."""
    buffers: list[Part] = []

    def put_aside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    packed = cloudpickle.dumps(value, protocol=5, buffer_callback=put_aside)
    return [packed, *buffers]


def unpack(parts: Sequence[Part]) -> Any:
    """Return what ``pack`` was given; its arrays can be written to."""
    return pickle.loads(parts[0], buffers=parts[1:])
