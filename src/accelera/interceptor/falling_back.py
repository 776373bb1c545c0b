"""What is done when memory runs out: with less room, and at last on the CPU; counted and logged each time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from accelera.devices import is_out_of_memory
from accelera.interceptor.statistics import statistics

logger = logging.getLogger("accelera.interceptor")

Found = TypeVar("Found")


def fall_back(op: str, what: str, why: object) -> None:
    """Count that ``op`` goes on as ``what`` says, and warn of it."""
    statistics.fell_back(op, what)
    logger.warning("%s goes on %s: %s", op, what, why)


def is_accelerator(device: torch.device) -> bool:
    """Return whether the CPU is another place than ``device``, with memory of its own."""
    return device.type != "cpu"


def with_less_room(
    op: str,
    compute: Callable[[int], Found],
    room_bytes: int,
    least_bytes: int,
    on_cpu: Callable[[], Found] | None,
) -> Found:
    """Return ``compute(room_bytes)``; each time memory runs out, again with half the room.

    Parameters
    ----------
    op
        The operator, as aten names it.
    compute
        Computes the whole within so many bytes of intermediates, from the beginning each time.
    room_bytes, least_bytes
        Bytes to begin with, and those with which half the room would not help.
    on_cpu
        Computes the whole on the CPU when the least is not there; None: torch's error is raised.
    """
    while True:
        try:
            return compute(room_bytes)
        except RuntimeError as error:
            is_least = room_bytes <= least_bytes
            if not is_out_of_memory(error) or (is_least and on_cpu is None):
                raise
            what = "on the CPU" if is_least else "in half the tile"
            fall_back(op, f"{what} after running out of memory", error)
        # Here the error and what its frames held are gone.
        if is_least:
            assert on_cpu is not None
            return on_cpu()
        room_bytes = max(room_bytes // 2, least_bytes)
